//! What can be typed.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use jiff::SignedDuration;
use palisade_api::budget;
use palisade_api::components::druid;
use palisade_api::gates::FeatureGateList;
use palisade_api::names;
use palisade_api::search_groups::SearchGroups;

/// Deletion protection for Kubernetes: refuses the deletions that people did not mean, says why, and how to
/// lift it.
#[derive(Debug, Parser)]
#[command(name = "palisade", version, max_term_width = 100, args_override_self = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the admission webhook and the controllers.
    Run(Box<RunArgs>),
    /// Say whether an object could be deleted now, and if not, why and how to lift it.
    Why(WhyArgs),
    /// Print what must be there before `palisade run`: namespace, service account and rights.
    Manifests(ManifestsArgs),
    /// Remove the registration, and keep running replicas from putting it back. Policies stay.
    Uninstall(UninstallArgs),
    /// Protect again after `palisade uninstall`.
    Resume(ResumeArgs),
    /// Print a page of the reference documentation.
    #[command(hide = true)]
    Reference {
        /// Which page.
        page: Page,
    },
}

/// Which cluster, and where in it.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct ClusterArgs {
    /// The kubeconfig to use; by default $KUBECONFIG, then ~/.kube/config, then the pod's service account.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// The kubeconfig's context to use, instead of the current one.
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,

    /// The namespace that Palisade's own objects live in. Nothing in it is ever refused.
    #[arg(long, value_name = "NAME", env = "PALISADE_NAMESPACE", hide_env_values = true, default_value = names::NAMESPACE)]
    pub(crate) namespace: String,

    /// Where to listen for the API server.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:9443")]
    pub(crate) listen: SocketAddr,

    /// Certificate authorities, as PEM: whoever calls the webhook must show a certificate that one of them signed. Read
    /// again when the file changes. By default nobody is asked for one.
    #[arg(long, value_name = "FILE")]
    pub(crate) client_ca: Option<PathBuf>,

    /// Where to serve /healthz, /readyz and /metrics.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8080")]
    pub(crate) admin_listen: SocketAddr,

    /// The Service through which the API server reaches Palisade in the cluster.
    #[arg(long, value_name = "NAME", default_value = names::PALISADE)]
    pub(crate) service: String,

    /// The address at which the API server reaches Palisade outside of the cluster, instead of a Service:
    /// https://HOST:PORT.
    #[arg(long, value_name = "URL", value_parser = WebhookUrl::parse)]
    pub(crate) webhook_url: Option<WebhookUrl>,

    /// What to switch on or off: `Name=true,Other=false`. All is on by default. Known:
    /// `ResourcesDeletionProtection`, `CascadeProtection`, `PodUnavailableBudget`, `PodDeletionFlowControl`,
    /// `CriticalService`, `ComponentProtection`.
    #[arg(long, value_name = "GATES")]
    pub(crate) feature_gates: Vec<FeatureGateList>,

    /// The API groups that are searched for what is protected: `core,apps,example.com`, where `core` is the core group.
    /// All others are never listed or watched, and a warning says so where it matters. `*` is every group.
    #[arg(long, value_name = "GROUPS", default_value_t)]
    pub(crate) search_groups: SearchGroups,

    /// Protect the components of etcd-druid's Etcds: only etcd-druid may change and delete them.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value = "false",
          default_missing_value = "true", action = clap::ArgAction::Set)]
    pub(crate) enable_etcd_components_webhook: bool,

    /// The account that etcd-druid runs as.
    #[arg(long, value_name = "USER", default_value = druid::RECONCILER,
          value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) reconciler_service_account: String,

    /// Who else may change an Etcd's components while nothing is in progress, and delete them while it is being deleted:
    /// a list, in place of the default.
    #[arg(long, value_name = "USERS", value_delimiter = ',', default_value = druid::EXEMPT)]
    pub(crate) etcd_components_webhook_exempt_service_accounts: Vec<String>,

    /// The same for groups.
    #[arg(long, value_name = "GROUPS", value_delimiter = ',')]
    pub(crate) etcd_components_webhook_exempt_groups: Vec<String>,

    /// What becomes of a protected deletion while no replica can answer.
    #[arg(long, value_name = "POLICY", default_value = "fail", ignore_case = true)]
    pub(crate) failure_policy: FailurePolicyArg,

    /// How many pods a budget lets go at least that no administrator wrote, by hand or by an annotation that generates it,
    /// whatever it says. An administrator is whoever may create and update budgets in all namespaces. 0 takes every budget at
    /// its word.
    #[arg(long, value_name = "NUMBER", default_value_t = budget::DEFAULT_MIN_UNAVAILABLE)]
    pub(crate) generated_budget_min_unavailable: u32,

    /// How long the loss of a pod that was admitted counts while nobody sees it happen. Another webhook may hold it up for
    /// as long as the API server lets a request go on: no shorter than that, which is its --request-timeout.
    #[arg(long, value_name = "DURATION", default_value = "60s")]
    pub(crate) reservation_expiry: SignedDuration,

    /// How long to go on answering after SIGTERM, while the Service's endpoints are updated.
    #[arg(long, value_name = "DURATION", default_value = "5s")]
    pub(crate) drain: SignedDuration,

    /// End the process when it has made no progress for so long, so that its supervisor starts another; 0s: never.
    #[arg(long, value_name = "DURATION", default_value = "20s")]
    pub(crate) watchdog: SignedDuration,

    /// How to write the log.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(crate) log_format: LogFormat,

    /// What to log, in the form of tracing's filters: `info`, `palisade_admission=debug`.
    #[arg(long, value_name = "FILTER", env = "PALISADE_LOG", hide_env_values = true, default_value = "info")]
    pub(crate) log: String,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum FailurePolicyArg {
    /// It is refused.
    Fail,
    /// It is let through.
    Ignore,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct WhyArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,

    /// The object: `KIND NAME` or `KIND/NAME`, as kubectl takes them.
    #[arg(required = true, num_args = 1..=2, value_names = ["KIND", "NAME"])]
    pub(crate) object: Vec<String>,

    /// The object's namespace; by default the context's.
    #[arg(short, long, value_name = "NAME")]
    pub(crate) namespace: Option<String>,

    /// The namespace that Palisade itself lives in.
    #[arg(long, value_name = "NAME", default_value = names::NAMESPACE)]
    pub(crate) palisade_namespace: String,

    /// How to print the answer.
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: Output,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Output {
    Text,
    Json,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ManifestsArgs {
    /// The namespace to run in.
    #[arg(long, value_name = "NAME", default_value = names::NAMESPACE)]
    pub(crate) namespace: String,

    /// The API groups that it may list and watch, as `palisade run` is told.
    #[arg(long, value_name = "GROUPS", default_value_t)]
    pub(crate) search_groups: SearchGroups,

    /// How to print them.
    #[arg(short, long, value_name = "FORMAT", default_value = "yaml")]
    pub(crate) output: ManifestFormat,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ManifestFormat {
    Yaml,
    Json,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct UninstallArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,

    /// The namespace that Palisade's own objects live in.
    #[arg(long, value_name = "NAME", default_value = names::NAMESPACE)]
    pub(crate) namespace: String,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,

    /// The namespace that Palisade's own objects live in.
    #[arg(long, value_name = "NAME", default_value = names::NAMESPACE)]
    pub(crate) namespace: String,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Page {
    /// Every command and flag.
    Cli,
    /// Every metric.
    Metrics,
}

/// `https://HOST:PORT`, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WebhookUrl {
    pub(crate) url: String,
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl WebhookUrl {
    fn parse(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| format!("{why}; expected https://HOST:PORT");
        let uri: http::Uri = text.parse().map_err(|error| wrong(&format!("{error}")))?;
        if uri.scheme_str() != Some("https") {
            return Err(wrong("the API server calls webhooks over https only"));
        }
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(wrong("the path is Palisade's to choose"));
        }
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(|| wrong("it names no host"))?;
        Ok(Self {
            url: text.trim_end_matches('/').to_owned(),
            host: host.trim_matches(['[', ']']).to_owned(),
            port: uri.port_u16().unwrap_or(443),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("https://127.0.0.1:9443", Some(("127.0.0.1", 9443)))]
    #[case("https://127.0.0.1:9443/", Some(("127.0.0.1", 9443)))]
    #[case("https://palisade.example", Some(("palisade.example", 443)))]
    #[case("https://[::1]:9443", Some(("::1", 9443)))]
    #[case("http://127.0.0.1:9443", None)]
    #[case("https://127.0.0.1:9443/admit", None)]
    #[case("127.0.0.1:9443", None)]
    #[case("", None)]
    fn webhook_urls(#[case] text: &str, #[case] expected: Option<(&str, u16)>) {
        let parsed = WebhookUrl::parse(text).ok();
        assert_eq!(parsed.as_ref().map(|url| (url.host.as_str(), url.port)), expected);
    }

    #[rstest]
    #[case(&[], false, &[druid::EXEMPT])]
    #[case(&["--enable-etcd-components-webhook"], true, &[druid::EXEMPT])]
    #[case(&["--enable-etcd-components-webhook=true"], true, &[druid::EXEMPT])]
    #[case(&["--enable-etcd-components-webhook=false"], false, &[druid::EXEMPT])]
    #[case(&["--etcd-components-webhook-exempt-service-accounts=a,b"], false, &["a", "b"])]
    fn etcd_flags(#[case] words: &[&str], #[case] enabled: bool, #[case] exempt: &[&str]) {
        let args = Args::try_parse_from(["palisade", "run"].iter().chain(words)).unwrap();
        let Command::Run(run) = args.command else { panic!("not run") };
        assert_eq!(run.enable_etcd_components_webhook, enabled);
        assert_eq!(run.etcd_components_webhook_exempt_service_accounts, exempt);
        assert_eq!(run.reconciler_service_account, druid::RECONCILER);
    }

    #[rstest]
    #[case("apps/v1", "name the group without a version")]
    #[case("core,*", "stands alone")]
    #[case("", "the core group is called core")]
    fn what_is_no_group_is_told(#[case] value: &str, #[case] why: &str) {
        for command in ["run", "manifests"] {
            let words = ["palisade", command, "--search-groups", value];
            let told = Args::try_parse_from(words).unwrap_err().to_string();
            assert!(told.contains(why) && told.contains("--search-groups"), "{told}");
        }
    }

    #[test]
    fn the_arguments_are_consistent() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }
}
