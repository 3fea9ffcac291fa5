//! One address for several replicas, as a Service would give it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Passes each connection on to the next replica that takes it, until dropped.
pub(crate) struct Balancer {
    task: tokio::task::JoinHandle<()>,
    only: watch::Sender<Option<usize>>,
}

impl Balancer {
    pub(crate) async fn start(port: u16, replicas: Vec<SocketAddr>) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let replicas = Arc::new(replicas);
        let next = Arc::new(AtomicUsize::new(0));
        let (only, chosen) = watch::channel(None);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (replicas, next, mut chosen) = (replicas.clone(), next.clone(), chosen.clone());
                tokio::spawn(async move {
                    let mut first = next.fetch_add(1, Ordering::Relaxed);
                    let mut tried = replicas.len();
                    if let Some(only) = chosen.borrow_and_update().as_ref() {
                        (first, tried) = (*only, 1);
                    }
                    let others = replicas.iter().cycle().skip(first % replicas.len()).take(tried);
                    tokio::select! {
                        () = pass_on(client, others) => {}
                        _ = chosen.changed() => {}
                    }
                });
            }
        });
        Ok(Self { task, only })
    }

    /// Passes connections on to one replica only, or to all again. Those that there are end.
    pub(crate) fn send_only_to(&self, replica: Option<usize>) {
        self.only.send_replace(replica);
    }
}

async fn pass_on(mut client: TcpStream, replicas: impl Iterator<Item = &SocketAddr>) {
    for replica in replicas {
        if let Ok(mut server) = TcpStream::connect(replica).await {
            let _ = client.set_nodelay(true);
            let _ = server.set_nodelay(true);
            // Either side may hang up whenever it likes.
            let _ = copy_bidirectional(&mut client, &mut server).await;
            return;
        }
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.task.abort();
    }
}
