//! What is said of many protected objects: how many there are, and commands that list and lift exactly those.
//!
//! A selector is printed only where it shows nothing but what was counted: not a label that a controller copied, not an
//! object that is terminating, not one whose `Cascading` has nothing to keep. Otherwise objects are named, as many as
//! fit.

use std::collections::{BTreeMap, BTreeSet};

use palisade_api::marks::{ALWAYS, CASCADING, DELETE_PROTECTION, DELETION_PROTECTED, Place};

use super::{NAMES_SHOWN, kubectl_takes, lifting, shell_word};
use crate::tally::{Counted, LabelClass, LabelSet, Profile, Seen};
use crate::verdict::{Doomed, Lift, Reason};
use crate::world::Count;

/// How many characters of commands a message has room for.
const LONGEST_LIST: usize = 2_000;
const LONGEST_LIFT: usize = 4_000;

/// Protected objects that are too many to name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Many {
    pub count: Count,
    /// How many labels or annotations protect.
    pub marked: usize,
    /// How many each `ResourceDeletionProtection` protects.
    pub by_protection: BTreeMap<String, usize>,
    /// The commands that list `listed` of them.
    pub list: Vec<String>,
    pub listed: usize,
    /// How many are lifted by the commands that come with it.
    pub lifted: usize,
}

/// What to say of them, and the commands that lift them. `found` are all that were counted, or some of them.
pub fn many(found: &[Doomed], counted: &Counted, seen: &Seen, is_exact: bool) -> (Many, Vec<String>) {
    let (list, listed) = listing(found, counted, seen);
    let (commands, lifted_by_them) = lifts(found, counted, seen);
    let total = counted.total();
    let many = Many {
        count: if is_exact { Count::Exactly(total) } else { Count::AtLeast(total) },
        marked: counted.marked(),
        by_protection: counted.by_protection().clone(),
        list,
        listed,
        lifted: lifted_by_them,
    };
    (many, commands)
}

/// The sentences before the commands that lift.
pub(super) fn told(many: &Many) -> String {
    let Many { count, marked, by_protection, list, listed, lifted } = many;
    let mut text = String::new();
    if !by_protection.is_empty() {
        text.push_str(" Of these, ");
        if *marked > 0 {
            text.extend(["labels or annotations protect ", &marked.to_string(), ", "]);
        }
        let protections = by_protection.iter().take(NAMES_SHOWN).map(|(name, number)| {
            format!(
                "ResourceDeletionProtection \"{name}\" protects {number} (kubectl get rdp {name} -o yaml)"
            )
        });
        text.push_str(&protections.collect::<Vec<_>>().join(", "));
        text.push_str(if by_protection.len() > NAMES_SHOWN { ", …." } else { "." });
    }
    if lifted < marked {
        let marked = format!("{marked} that labels or annotations protect");
        text.extend([" The commands lift ", &lifted.to_string(), " of the ", &marked]);
        text.push_str("; ask again for the others.");
    }
    if !list.is_empty() {
        let which = if *listed == count.seen() { "them".to_owned() } else { format!("{listed} of them") };
        // Whoever copies the commands may copy this semicolon, but not a full stop.
        text.extend([" To list ", &which, ": ", &list.join(" && "), ";"]);
    }
    text
}

/// Commands of limited length.
struct Commands {
    commands: Vec<String>,
    left: usize,
}

impl Commands {
    fn new(longest: usize) -> Self {
        Self { commands: Vec::new(), left: longest }
    }

    fn add(&mut self, command: String) -> bool {
        let Some(left) = self.left.checked_sub(command.len() + " && ".len()) else { return false };
        self.left = left;
        self.commands.push(command);
        true
    }

    /// A command for as many names as fit; how many those are.
    fn add_names(&mut self, before: &str, names: &[&str], after: &str) -> usize {
        let mut left = self.left.saturating_sub(before.len() + after.len() + " && ".len());
        let mut fitting = String::new();
        let mut number = 0;
        for name in names {
            let word = shell_word(name);
            let Some(rest) = left.checked_sub(1 + word.len()) else { break };
            (left, number) = (rest, number + 1);
            fitting.push(' ');
            fitting.push_str(&word);
        }
        if number > 0 && self.add(format!("{before}{fitting}{after}")) { number } else { 0 }
    }
}

/// What one selector can show: every value of the one label that always protects, or one class of values.
fn candidates() -> impl Iterator<Item = &'static [LabelClass]> {
    let all = &LabelClass::OF_DELETE_PROTECTION[..];
    std::iter::once(all).chain(LabelClass::ALL.chunks(1))
}

/// The places that a command can be for: all namespaces, if there are several, and each.
fn scopes<T>(namespaces: &BTreeMap<String, T>) -> impl Iterator<Item = Option<&str>> {
    let all = (namespaces.len() > 1).then_some(None);
    all.into_iter().chain(namespaces.keys().map(|namespace| Some(&**namespace)))
}

fn words(scope: Option<&str>) -> String {
    match scope {
        None => " -A".to_owned(),
        Some("") => String::new(),
        Some(namespace) => format!(" -n {namespace}"),
    }
}

/// The selector of all that carries a label of some classes.
fn selector(classes: &[LabelClass]) -> String {
    let [class] = classes else { return DELETE_PROTECTION.to_owned() };
    let key = class.key();
    match class {
        LabelClass::Always | LabelClass::DeletionProtected => format!("{key}={ALWAYS}"),
        LabelClass::Cascading => format!("{key}={CASCADING}"),
        LabelClass::OtherProtection => format!("{key},{key} notin ({ALWAYS},{CASCADING})"),
        LabelClass::DisableCascading => format!("{key}=true"),
        LabelClass::OtherDisableCascading => format!("{key},{key} notin (true,false)"),
    }
}

/// Leaves out what carries a label of a class before these.
fn without_earlier(classes: &[LabelClass]) -> String {
    match classes {
        [LabelClass::DeletionProtected] => format!(",!{DELETE_PROTECTION}"),
        [LabelClass::DisableCascading | LabelClass::OtherDisableCascading] => {
            format!(",!{DELETE_PROTECTION},{DELETION_PROTECTED}!={ALWAYS}")
        }
        _ => String::new(),
    }
}

fn quoted(selector: &str) -> String {
    if selector.contains([' ', '!', '(']) { format!("'{selector}'") } else { selector.to_owned() }
}

/// Labels and annotations that commands take away.
fn lifts(found: &[Doomed], counted: &Counted, seen: &Seen) -> (Vec<String>, usize) {
    let mut commands = Commands::new(LONGEST_LIFT);
    let mut covered: BTreeSet<(&str, &str, LabelClass)> = BTreeSet::new();
    for (kind, namespaces) in counted.kinds() {
        for scope in scopes(namespaces) {
            for classes in candidates() {
                let number = |classes: &[LabelClass]| {
                    counted.number(kind, scope, |profile| profile.protecting.any(classes))
                };
                let total = number(classes);
                let present = classes.iter().filter(|class| number(&[**class]) > 0).count();
                let in_scope =
                    namespaces.keys().filter(|namespace| scope.is_none_or(|scope| scope == *namespace));
                let open: Vec<(&str, &str, LabelClass)> = in_scope
                    .flat_map(|namespace| classes.iter().map(move |class| (kind, &**namespace, *class)))
                    .filter(|place| !covered.contains(place))
                    .filter(|(_, namespace, class)| {
                        counted.number(kind, Some(namespace), |profile| profile.protecting.contains(*class))
                            > 0
                    })
                    .collect();
                // One object is named: a name never means more than that.
                if open.is_empty() || total < 2 || (classes.len() > 1 && present < 2) {
                    continue;
                }
                let is_exact = seen.number(kind, scope, classes, |set| set.any(classes)) == Some(total);
                let (place, selector) = (words(scope), quoted(&selector(classes)));
                let command = || format!("kubectl label {kind}{place} -l {selector} {}-", classes[0].key());
                if is_exact && commands.add(command()) {
                    covered.extend(open);
                }
            }
        }
    }
    let by_selectors = |kind: &str, namespace: &str, profile: Profile| {
        let is_covered = |class| covered.contains(&(kind, namespace, class));
        profile.is_marked() && !profile.annotated && profile.protecting.iter().all(is_covered)
    };
    let mut lifted = 0;
    for (kind, namespaces) in counted.kinds() {
        for namespace in namespaces.keys() {
            let is_covered = |profile| by_selectors(kind, namespace, profile);
            lifted += counted.number(kind, Some(namespace), is_covered);
        }
    }
    lifted +=
        by_name(found, &mut commands, |kind, namespace, class| covered.contains(&(kind, namespace, class)));
    (commands.commands, lifted)
}

/// Names what no selector lifts, and says how many of it are lifted wholly.
fn by_name(
    found: &[Doomed],
    commands: &mut Commands,
    is_covered: impl Fn(&str, &str, LabelClass) -> bool,
) -> usize {
    // By kind, namespace, verb and keys.
    let mut groups: BTreeMap<(&str, &str, &str, Vec<&str>), Vec<usize>> = BTreeMap::new();
    let mut open: BTreeMap<usize, usize> = BTreeMap::new();
    for (index, doomed) in found.iter().enumerate() {
        let about = &doomed.about;
        let (kind, namespace) = (&*about.kubectl_name, about.namespace.as_deref().unwrap_or_default());
        let classes = Profile::of(doomed).protecting.iter();
        let labels: BTreeSet<&str> =
            classes.filter(|class| !is_covered(kind, namespace, *class)).map(LabelClass::key).collect();
        let marks = doomed.because.iter().filter_map(Reason::mark);
        let annotations: BTreeSet<&str> =
            marks.filter(|mark| mark.place == Place::Annotation).map(|mark| mark.key).collect();
        for (verb, keys) in [("label", labels), ("annotate", annotations)] {
            if !keys.is_empty() {
                let keys = keys.into_iter().collect();
                groups.entry((kind, namespace, verb, keys)).or_default().push(index);
                *open.entry(index).or_default() += 1;
            }
        }
    }
    let mut lifted = 0;
    let mut lift = |index: &usize| {
        if let Some(left) = open.get_mut(index) {
            *left -= 1;
            lifted += usize::from(*left == 0);
        }
    };
    for ((kind, namespace, verb, keys), indices) in groups {
        let (plain, odd): (Vec<usize>, Vec<usize>) =
            indices.into_iter().partition(|index| kubectl_takes(&found[*index].about.name));
        let names: Vec<&str> = plain.iter().map(|index| &*found[*index].about.name).collect();
        let after = format!("{} {}-", words(Some(namespace)), keys.join("- "));
        let fitting = commands.add_names(&format!("kubectl {verb} {kind}"), &names, &after);
        plain.iter().take(fitting).for_each(&mut lift);
        for index in odd {
            let marks = found[index].because.iter().filter_map(Reason::mark);
            let place = if verb == "label" { Place::Label } else { Place::Annotation };
            let removed = marks.filter(|mark| mark.place == place && keys.contains(&mark.key));
            let removed: Vec<Lift> = removed.map(Lift::of_mark).collect();
            if lifting(&found[index].about, &removed).into_iter().all(|command| commands.add(command)) {
                lift(&index);
            }
        }
    }
    lifted
}

/// Objects of several kinds that one command lists.
struct Listed<'a> {
    scope: Option<&'a str>,
    selector: Option<String>,
    kinds: Vec<&'a str>,
    number: usize,
}

/// Commands that list objects, each once, and how many those are.
fn listing(found: &[Doomed], counted: &Counted, seen: &Seen) -> (Vec<String>, usize) {
    let mut lists: Vec<Listed<'_>> = Vec::new();
    let mut covered: BTreeSet<(&str, &str, Option<LabelClass>)> = BTreeSet::new();
    let mut commands = Commands::new(LONGEST_LIST);
    for (kind, namespaces) in counted.kinds() {
        for scope in scopes(namespaces) {
            let places: Vec<&str> = namespaces
                .keys()
                .map(|namespace| &**namespace)
                .filter(|namespace| scope.is_none_or(|scope| scope == *namespace))
                .collect();
            let mut chosen: Vec<(Option<String>, usize)> = Vec::new();
            let mut chosen_places: BTreeSet<(&str, &str, Option<LabelClass>)> = BTreeSet::new();
            for classes in candidates() {
                let is_first = |set: LabelSet| set.first().is_some_and(|class| classes.contains(&class));
                let number = counted.number(kind, scope, |profile| is_first(profile.carried));
                let here =
                    classes.iter().flat_map(|class| places.iter().map(|place| (kind, *place, Some(*class))));
                let here: Vec<_> = here
                    .filter(|place| !covered.contains(place) && !chosen_places.contains(place))
                    .filter(|(_, namespace, class)| {
                        counted.number(kind, Some(namespace), |profile| profile.carried.first() == *class) > 0
                    })
                    .collect();
                let present = here.iter().map(|(_, _, class)| *class).collect::<BTreeSet<_>>().len();
                if here.is_empty() || number < 2 || (classes.len() > 1 && present < 2) {
                    continue;
                }
                if seen.number(kind, scope, classes, is_first) != Some(number) {
                    continue;
                }
                let shows_more = seen.number(kind, scope, classes, |set| set.any(classes)) != Some(number);
                let mut selector = selector(classes);
                if shows_more {
                    selector.push_str(&without_earlier(classes));
                }
                chosen.push((Some(quoted(&selector)), number));
                chosen_places.extend(here);
            }
            let is_open = |namespace: &str, profile: Profile| {
                let place = (kind, namespace, profile.carried.first());
                !covered.contains(&place) && !chosen_places.contains(&place)
            };
            let open: usize = places
                .iter()
                .map(|namespace| counted.number(kind, Some(namespace), |profile| is_open(namespace, profile)))
                .sum();
            let total = counted.number(kind, scope, |_| true);
            let nothing_listed = !places
                .iter()
                .any(|place| covered.iter().any(|(of, namespace, _)| (*of, *namespace) == (kind, *place)));
            // All that there are of a kind.
            if open > 0
                && total > 1
                && nothing_listed
                && seen.number(kind, scope, &[], |_| true) == Some(total)
            {
                chosen = vec![(None, total)];
                let classes = LabelClass::ALL.into_iter().map(Some).chain([None]);
                chosen_places =
                    classes.flat_map(|class| places.iter().map(move |place| (kind, *place, class))).collect();
            }
            covered.extend(chosen_places);
            for (selector, number) in chosen {
                match lists.iter_mut().find(|list| list.scope == scope && list.selector == selector) {
                    Some(list) => {
                        list.kinds.push(kind);
                        list.number += number;
                    }
                    None => lists.push(Listed { scope, selector, kinds: vec![kind], number }),
                }
            }
        }
    }
    let mut listed = 0;
    for Listed { scope, selector, kinds, number } in lists {
        let selector = selector.map(|selector| format!(" -l {selector}")).unwrap_or_default();
        if commands.add(format!("kubectl get {}{}{selector}", kinds.join(","), words(scope))) {
            listed += number;
        }
    }
    let mut named: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for doomed in found {
        let about = &doomed.about;
        let (kind, namespace) = (&*about.kubectl_name, about.namespace.as_deref().unwrap_or_default());
        // What kubectl would take for a flag is not listed.
        if !covered.contains(&(kind, namespace, doomed.carried.first())) && !about.name.starts_with('-') {
            named.entry((kind, namespace)).or_default().push(&about.name);
        }
    }
    for ((kind, namespace), names) in named {
        listed += commands.add_names(&format!("kubectl get {kind}"), &names, &words(Some(namespace)));
    }
    (commands.commands, listed)
}
