//! Sockets: the webhook's with TLS, the admin's without.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Request, StatusCode};
use axum::response::Response;
use axum::routing::get;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use palisade_cluster::sync;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use crate::connections::{Connection, Connections, LIMITS};
use crate::metrics::{Closed, Metrics};
use crate::tls::{ClientAuthorities, ServingCertificate, TlsError};

const HANDSHAKE: Duration = Duration::from_secs(5);
/// Until when a connection must have sent a review that can be read.
const FIRST_REVIEW: Duration = Duration::from_secs(10);
/// Longer than the 90 s after which the API server drops an idle connection, so that it is never we who
/// close one that it is about to use.
const IDLE: Duration = Duration::from_secs(120);
/// What connections may still take to finish once we are leaving.
const FAREWELL: Duration = Duration::from_secs(30);

/// How far a server's life has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Serving {
    /// Taking everything.
    Open,
    /// Answering what comes, each answer the last on its connection.
    Draining,
    /// Taking nothing new.
    Closed,
}

/// Serves reviews until `serving` says [`Serving::Closed`] and all that were begun are answered. With `callers`, whoever
/// asks must show a certificate that one of them signed.
pub async fn serve(
    listener: TcpListener,
    certificate: Arc<ServingCertificate>,
    callers: Option<Arc<ClientAuthorities>>,
    router: Router,
    metrics: Arc<Metrics>,
    serving: watch::Receiver<Serving>,
) -> Result<(), TlsError> {
    let tls = TlsAcceptor::from(Arc::new(certificate.config(callers)?));
    let accepted = move |stream: TcpStream, connection: Connection, serving: watch::Receiver<Serving>| {
        let (tls, metrics, router) = (tls.clone(), metrics.clone(), router.clone());
        async move {
            let shaken = tokio::select! {
                shaken = timeout(HANDSHAKE, tls.accept(stream)) => shaken,
                () = connection.crowded_out() => return metrics.closed(Closed::Crowded),
            };
            match shaken {
                Ok(Ok(stream)) => {
                    metrics.connections.inc();
                    let closed = converse(stream, router, connection, serving).await;
                    metrics.connections.dec();
                    if let Some(why) = closed {
                        metrics.closed(why);
                    }
                }
                // A handshake that fails or stalls is the caller's trouble, and a port scan is no news.
                Ok(Err(_)) | Err(_) => metrics.closed(Closed::Handshake),
            }
        }
    };
    listen(listener, serving, accepted).await;
    Ok(())
}

/// Serves `/healthz`, `/readyz` and `/metrics`.
pub async fn serve_admin(
    listener: TcpListener,
    ready: watch::Receiver<Result<(), String>>,
    metrics: Arc<Metrics>,
    serving: watch::Receiver<Serving>,
) {
    let draining = serving.clone();
    let readyz = move || {
        let (ready, draining) = (ready.clone(), draining.clone());
        async move {
            if sync::current(&draining) > Serving::Open {
                return text(StatusCode::SERVICE_UNAVAILABLE, "not ready: shutting down\n".to_owned());
            }
            match sync::current(&ready) {
                Ok(()) => text(StatusCode::OK, "ok\n".to_owned()),
                Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n")),
            }
        }
    };
    let router = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(move || async move { metrics.text() }));
    // Nothing is asked here that would prove a caller: whoever asks at all may stay.
    let router = router.layer(axum::middleware::from_fn(prove));
    let accepted = move |stream: TcpStream, connection: Connection, serving: watch::Receiver<Serving>| {
        let router = router.clone();
        async move {
            let _ = converse(stream, router, connection, serving).await;
        }
    };
    listen(listener, serving, accepted).await;
}

async fn prove(request: axum::extract::Request, next: axum::middleware::Next) -> Response {
    if let Some(connection) = request.extensions().get::<Connection>() {
        connection.prove();
    }
    next.run(request).await
}

fn text(status: StatusCode, text: String) -> Response {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response
}

/// Accepts connections until closed, then waits for those that are still talking.
async fn listen<F: Future<Output = ()> + Send + 'static>(
    listener: TcpListener,
    mut serving: watch::Receiver<Serving>,
    accepted: impl Fn(TcpStream, Connection, watch::Receiver<Serving>) -> F,
) {
    let connections = Connections::new(LIMITS);
    let mut conversations = JoinSet::new();
    loop {
        let (stream, peer) = tokio::select! {
            accepted = accept(&listener) => accepted,
            Some(_) = conversations.join_next() => continue,
            _ = serving.wait_for(|serving| *serving == Serving::Closed) => break,
        };
        conversations.spawn(accepted(stream, connections.open(peer), serving.clone()));
    }
    drop(listener);
    let _ = timeout(FAREWELL, async { while conversations.join_next().await.is_some() {} }).await;
}

async fn accept(listener: &TcpListener) -> (TcpStream, IpAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let _ = stream.set_nodelay(true);
                return (stream, peer.ip());
            }
            // Out of file descriptors, most likely: others will close theirs.
            Err(error) if error.kind() != io::ErrorKind::ConnectionAborted => {
                tracing::warn!(%error, "accepting a connection");
                sleep(Duration::from_millis(100)).await;
            }
            Err(_) => {}
        }
    }
}

/// Answers the requests of one connection, until either side is done with it. Says why if it was closed early.
///
/// While draining, the answer says `Connection: close`, so that the caller goes elsewhere next time; an idle
/// connection is left alone, since closing it just as the caller writes to it would lose a review.
async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    connection: Connection,
    mut serving: watch::Receiver<Serving>,
) -> Option<Closed> {
    let (phase, caller) = (serving.clone(), connection.clone());
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        let (router, phase) = (router.clone(), phase.clone());
        request.extensions_mut().insert(caller.clone());
        async move {
            let answered = router.oneshot(request.map(Body::new)).await;
            answered.map(|mut response: Response| {
                if sync::current(&phase) > Serving::Open {
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                response
            })
        }
    });
    let talk = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .serve_connection(TokioIo::new(stream), service);
    let mut talk = std::pin::pin!(talk);
    let silence = async {
        loop {
            sleep(FIRST_REVIEW).await;
            if !connection.may_stay() {
                return;
            }
        }
    };
    tokio::select! {
        _ = talk.as_mut() => return None,
        () = silence => return Some(Closed::Silent),
        () = connection.crowded_out() => return Some(Closed::Crowded),
        _ = serving.wait_for(|serving| *serving == Serving::Closed) => {}
    }
    talk.as_mut().graceful_shutdown();
    let _ = talk.await;
    None
}
