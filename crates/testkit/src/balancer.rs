//! One address for several replicas, as a Service would give it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

/// Passes each connection on to the next replica that takes it, until dropped.
pub(crate) struct Balancer {
    task: tokio::task::JoinHandle<()>,
}

impl Balancer {
    pub(crate) async fn start(port: u16, replicas: Vec<SocketAddr>) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let replicas = Arc::new(replicas);
        let next = Arc::new(AtomicUsize::new(0));
        let task = tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let (replicas, next) = (replicas.clone(), next.clone());
                tokio::spawn(async move {
                    let first = next.fetch_add(1, Ordering::Relaxed);
                    for offset in 0..replicas.len() {
                        let replica = replicas[(first + offset) % replicas.len()];
                        if let Ok(mut server) = TcpStream::connect(replica).await {
                            let _ = client.set_nodelay(true);
                            let _ = server.set_nodelay(true);
                            // Either side may hang up whenever it likes.
                            let _ = copy_bidirectional(&mut client, &mut server).await;
                            return;
                        }
                    }
                });
            }
        });
        Ok(Self { task })
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.task.abort();
    }
}
