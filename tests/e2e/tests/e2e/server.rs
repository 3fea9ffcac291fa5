//! The HTTPS door itself, over a socket.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::cluster::shared;

#[test]
fn a_connection_that_never_speaks_tls_is_closed() {
    shared(async |cluster| {
        let address = cluster.palisade.webhook_url().replace("https://", "");
        let mut stream = TcpStream::connect(address).await.expect("connected");
        let mut byte = [0];
        // The handshake's deadline is 5 s.
        let closed = tokio::time::timeout(Duration::from_secs(13), stream.read(&mut byte)).await;
        assert!(matches!(closed, Ok(Ok(0) | Err(_))), "{closed:?}");
    });
}

#[test]
fn plain_http_gets_no_answer() {
    shared(async |cluster| {
        let address = cluster.palisade.webhook_url().replace("https://", "");
        let mut stream = TcpStream::connect(address).await.expect("connected");
        stream.write_all(b"POST /admit HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("written");
        let mut answer = Vec::new();
        let _ = tokio::time::timeout(Duration::from_secs(13), stream.read_to_end(&mut answer)).await;
        assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    });
}

#[test]
fn the_admin_port_tells_health_readiness_and_metrics() {
    shared(async |cluster| {
        for replica in [0, 1] {
            assert!(cluster.admin(replica, "/healthz").await.starts_with("HTTP/1.1 200"));
            assert!(cluster.admin(replica, "/readyz").await.starts_with("HTTP/1.1 200"));
            assert!(cluster.admin(replica, "/metrics").await.contains("palisade_reviews_total"));
            assert!(cluster.admin(replica, "/nothing").await.starts_with("HTTP/1.1 404"));
        }
    });
}
