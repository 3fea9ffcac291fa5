//! From flags to a client.

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::args::ClusterArgs;

pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;

/// A client for the cluster that the flags, the environment or the pod name.
pub(crate) async fn connect(args: &ClusterArgs) -> Result<Client, Error> {
    Ok(Client::try_from(config(args).await?)?)
}

/// The same, which reports a 429 or a 503 instead of asking again.
pub(crate) async fn connect_without_retry(args: &ClusterArgs) -> Result<Client, Error> {
    let mut config = config(args).await?;
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

/// Clients with connections of their own, which do the same.
pub(crate) async fn connect_searches(args: &ClusterArgs, count: usize) -> Result<Vec<Client>, Error> {
    let mut config = config(args).await?;
    config.default_retry = false;
    (0..count).map(|_| Ok(Client::try_from(config.clone())?)).collect()
}

async fn config(args: &ClusterArgs) -> Result<Config, Error> {
    let options = KubeConfigOptions { context: args.context.clone(), ..KubeConfigOptions::default() };
    Ok(match &args.kubeconfig {
        Some(path) => {
            let kubeconfig = Kubeconfig::read_from(path)
                .map_err(|error| format!("reading {}: {error}", path.display()))?;
            Config::from_custom_kubeconfig(kubeconfig, &options).await?
        }
        None if args.context.is_some() => Config::from_kubeconfig(&options).await?,
        None => Config::infer().await?,
    })
}
