//! `--client-ca`: whom callers of the webhook must be vouched for by.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use palisade_admission::{ClientAuthorities, ServingCertificate};

use crate::connect::Error;

/// How often the file is looked at.
const LOOK: Duration = Duration::from_secs(10);

/// Reads the file, and goes on to read it when it changes.
pub(super) async fn read(file: &Path, own: Arc<ServingCertificate>) -> Result<Arc<ClientAuthorities>, Error> {
    let text = tokio::fs::read_to_string(file)
        .await
        .map_err(|error| format!("reading --client-ca {}: {error}", file.display()))?;
    let authorities = Arc::new(ClientAuthorities::new(&text, own)?);
    tokio::spawn(follow(file.to_owned(), text, authorities.clone()));
    Ok(authorities)
}

async fn follow(file: PathBuf, mut known: String, authorities: Arc<ClientAuthorities>) {
    loop {
        tokio::time::sleep(LOOK).await;
        // It fails closed: callers must be vouched for by those that were known.
        let failed = match tokio::fs::read_to_string(&file).await {
            Ok(text) if text == known => continue,
            Ok(text) => match authorities.replace(&text) {
                Ok(()) => {
                    tracing::info!(file = %file.display(), "callers are vouched for by new authorities");
                    known = text;
                    continue;
                }
                Err(error) => error.to_string(),
            },
            Err(error) => error.to_string(),
        };
        tracing::warn!(file = %file.display(), failed, "reading --client-ca");
    }
}
