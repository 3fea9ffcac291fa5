//! The ledger: what the loss of a pod costs, charged to all accounts that it concerns or to none.
//!
//! One account is charged after the other, and given back where one of them refuses. Whoever dies in between leaves
//! charges that end by themselves: their pod is seen to live on.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use palisade_api::flow::Stamp;
use palisade_engine::{Answer, Loss, Refused, Spent, User, Withdrawal};
use tokio::time::{Instant, timeout_at};

use crate::budgets::{self, Budgets, Loser};
use crate::commit::{self, Account};
use crate::feed::number;
use crate::flow::{self, Flows, Outcome, Removal};
use crate::presence::find_pod;

/// How long before the review's deadline a flow control is given up that would not refuse anyway.
const SPARE: Duration = Duration::from_millis(500);

/// Where pods are charged to.
pub struct Ledger {
    pub budgets: Arc<Budgets>,
    pub flows: Arc<Flows>,
}

/// What is to be charged.
struct Bill<'a> {
    pod: &'a Withdrawal<'a>,
    budgets: Vec<Arc<budgets::Known>>,
    /// The flow controls that may refuse.
    flows: Vec<Arc<flow::Known>>,
    /// Those that only count.
    counting: Vec<Arc<flow::Known>>,
    /// The newest revision of the pod that is known.
    revision: u64,
    deadline: Instant,
}

/// What has been charged, and can be given back.
enum Charge<'a> {
    Budget(&'a budgets::Known, Timestamp),
    Flow(&'a flow::Known, Stamp),
}

impl Ledger {
    /// Charges a pod; unless `really`, only says what would be.
    pub(crate) async fn spend(&self, pod: &Withdrawal<'_>, deadline: Instant, really: bool) -> Spent {
        let mut spent = Spent::default();
        let mut bill = Bill {
            pod,
            budgets: Vec::new(),
            flows: Vec::new(),
            counting: Vec::new(),
            revision: number(&pod.pod.resource_version),
            deadline,
        };
        if pod.loss.is_some() {
            match in_time::<Budgets, _>(deadline, self.budgets.concerned(pod)).await {
                Ok(budgets) => bill.budgets = budgets,
                Err(unknown) => spent.refused.push(Refused::BudgetsUnknown(unknown)),
            }
        }
        match in_time::<Flows, _>(deadline, self.flows.concerned(pod)).await {
            Ok(concerned) => {
                for (known, forced) in concerned {
                    if forced { &mut bill.counting } else { &mut bill.flows }.push(known);
                }
            }
            Err(unknown) => spent.refused.push(Refused::FlowUnknown(unknown)),
        }
        if !bill.is_empty() && !pod.is_read {
            match self.find(&bill).await {
                Ok(Some(revision)) => bill.revision = revision,
                // Nothing is charged for a pod that is not there, and nobody can delete it: the API server says so by
                // itself.
                Ok(None) => return spent,
                Err(refused) => spent.refused.push(refused),
            }
        }
        // One that clearly does not allow it spares the others a charge that would be given back.
        let known_to_refuse = !spent.refused.is_empty();
        if !really || known_to_refuse || bill.budgets.len() + bill.flows.len() > 1 {
            self.peek(&bill, !really, &mut spent).await;
            if !really || !spent.refused.is_empty() {
                return spent;
            }
        }
        self.charge(&bill, &mut spent).await;
        spent
    }

    /// The newest revision of the pod, if it is there.
    async fn find(&self, bill: &Bill<'_>) -> Result<Option<u64>, Refused> {
        let (client, index) = (self.flows.client(), self.budgets.index());
        if bill.budgets.is_empty() {
            let found = find_pod::<Flows>(client, index, bill.pod.pod);
            return in_time::<Flows, _>(bill.deadline, found).await.map_err(Refused::FlowUnknown);
        }
        let found = find_pod::<Budgets>(client, index, bill.pod.pod);
        in_time::<Budgets, _>(bill.deadline, found).await.map_err(Refused::BudgetsUnknown)
    }

    /// What would come of it.
    async fn peek(&self, bill: &Bill<'_>, fresh: bool, spent: &mut Spent) {
        let deadline = bill.deadline;
        for known in &bill.budgets {
            match in_time::<Budgets, _>(deadline, self.budgets.peek(known, &bill.loser())).await {
                Ok(None) => {}
                Ok(Some(standing)) => spent.refused.push(Refused::Budget(standing)),
                Err(unknown) => spent.refused.push(Refused::BudgetsUnknown(unknown)),
            }
        }
        let Some(user) = bill.pod.removed_by else { return };
        for known in &bill.flows {
            let removal = bill.removal(false);
            match in_time::<Flows, _>(deadline, self.flows.peek(known, &removal, user, fresh)).await {
                Ok(Outcome::Refused(throttled)) => spent.refused.push(Refused::Flow(throttled)),
                Ok(_) => {}
                Err(unknown) => spent.refused.push(Refused::FlowUnknown(unknown)),
            }
        }
        for known in bill.counting.iter().filter(|_| fresh) {
            let removal = bill.removal(true);
            let peeked =
                in_time::<Flows, _>(deadline - SPARE, self.flows.peek(known, &removal, user, fresh)).await;
            // It fails open: it would not refuse.
            if let Ok(Outcome::Passed(_, throttled)) = peeked {
                spent.passed.push(throttled);
            }
        }
    }

    async fn charge(&self, bill: &Bill<'_>, spent: &mut Spent) {
        let mut charged = Vec::new();
        if let Err(refused) = self.charge_all(bill, &mut charged).await {
            for charge in charged {
                self.give_back(charge, &bill.pod.pod.uid, bill.deadline).await;
            }
            return spent.refused.push(refused);
        }
        let Some(user) = bill.pod.removed_by else { return };
        let deadline = bill.deadline - SPARE;
        for known in &bill.counting {
            let charge = self.flows.charge(known, bill.removal(true), user, deadline);
            match in_time::<Flows, _>(deadline, charge).await {
                Ok(Outcome::Passed(_, throttled)) => spent.passed.push(throttled),
                Ok(_) => {}
                // It fails open: it would not refuse.
                Err(unknown) => {
                    tracing::warn!(control = known.name, why = unknown.why, "a deletion was not counted");
                }
            }
        }
    }

    /// Charges one account after the other, as far as they allow it.
    async fn charge_all<'b>(&self, bill: &'b Bill<'_>, charged: &mut Vec<Charge<'b>>) -> Result<(), Refused> {
        let deadline = bill.deadline;
        for known in &bill.budgets {
            match in_time::<Budgets, _>(deadline, self.budgets.charge(known, &bill.loser(), deadline)).await {
                Ok(Ok(at)) => charged.extend(at.map(|at| Charge::Budget(known, at))),
                Ok(Err(standing)) => return Err(Refused::Budget(standing)),
                Err(unknown) => return Err(Refused::BudgetsUnknown(unknown)),
            }
        }
        let none = User::default();
        let user = bill.pod.removed_by.unwrap_or(&none);
        for known in &bill.flows {
            match in_time::<Flows, _>(deadline, self.flows.charge(known, bill.removal(false), user, deadline))
                .await
            {
                Ok(Outcome::Charged(stamp) | Outcome::Passed(stamp, _)) => {
                    charged.extend(stamp.map(|stamp| Charge::Flow(known, stamp)));
                }
                Ok(Outcome::Refused(throttled)) => return Err(Refused::Flow(throttled)),
                Err(unknown) => return Err(Refused::FlowUnknown(unknown)),
            }
        }
        Ok(())
    }

    async fn give_back(&self, charge: Charge<'_>, uid: &str, deadline: Instant) {
        match charge {
            Charge::Budget(known, at) => self.budgets.release(known, uid, at, deadline).await,
            Charge::Flow(known, stamp) => self.flows.release(known, uid, stamp, deadline).await,
        }
    }
}

impl Bill<'_> {
    /// Whether nobody counts it.
    fn is_empty(&self) -> bool {
        self.budgets.is_empty() && self.flows.is_empty() && self.counting.is_empty()
    }

    /// Whether one may refuse after another was charged.
    fn is_tentative(&self) -> bool {
        self.budgets.len() + self.flows.len() > 1
    }

    fn loser(&self) -> Loser {
        Loser {
            uid: (&*self.pod.pod.uid).into(),
            revision: self.revision.to_string().into(),
            goes: matches!(self.pod.loss, Some(Loss::Deletion | Loss::Eviction)),
            tentative: self.is_tentative(),
        }
    }

    fn removal(&self, forced: bool) -> Removal {
        Removal {
            uid: self.pod.pod.uid.to_string(),
            namespace: self.pod.pod.namespace.as_deref().unwrap_or_default().to_owned(),
            name: self.pod.pod.name.to_string(),
            forced,
            tentative: !forced && self.is_tentative(),
            lasting: self.pod.stays,
        }
    }
}

async fn in_time<A: Account, T>(deadline: Instant, asked: impl Future<Output = Answer<T>>) -> Answer<T> {
    let late = |_| Err(commit::unknown::<A>("there was no answer in time"));
    timeout_at(deadline, asked).await.unwrap_or_else(late)
}
