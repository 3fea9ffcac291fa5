//! Sockets: the webhook's with TLS, the admin's without.

use std::io;
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
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use crate::metrics::Metrics;
use crate::tls::{ServingCertificate, TlsError};
use palisade_cluster::sync;

const HANDSHAKE: Duration = Duration::from_secs(10);
/// Longer than the 90 s after which the API server drops an idle connection, so that it is never we who
/// close one that it is about to use.
const IDLE: Duration = Duration::from_secs(120);
/// An API server keeps at most 25 idle connections for a webhook; nobody else has business here.
const CONNECTIONS: usize = 1024;
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

/// Serves reviews until `serving` says [`Serving::Closed`] and all that were begun are answered.
pub async fn serve(
    listener: TcpListener,
    certificate: Arc<ServingCertificate>,
    router: Router,
    metrics: Arc<Metrics>,
    serving: watch::Receiver<Serving>,
) -> Result<(), TlsError> {
    let tls = TlsAcceptor::from(Arc::new(certificate.config()?));
    let accepted = move |stream: TcpStream, router: Router, serving: watch::Receiver<Serving>| {
        let (tls, metrics) = (tls.clone(), metrics.clone());
        async move {
            // A handshake that fails or stalls is the caller's trouble, and a port scan is no news.
            if let Ok(Ok(stream)) = timeout(HANDSHAKE, tls.accept(stream)).await {
                metrics.connections.inc();
                converse(stream, router, serving).await;
                metrics.connections.dec();
            }
        }
    };
    listen(listener, router, serving, accepted).await;
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
    listen(listener, router, serving, converse).await;
}

fn text(status: StatusCode, text: String) -> Response {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response
}

/// Accepts connections until closed, then waits for those that are still talking.
async fn listen<F: Future<Output = ()> + Send + 'static>(
    listener: TcpListener,
    router: Router,
    mut serving: watch::Receiver<Serving>,
    accepted: impl Fn(TcpStream, Router, watch::Receiver<Serving>) -> F,
) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut conversations = JoinSet::new();
    loop {
        let (stream, place) = tokio::select! {
            accepted = accept(&listener, &places) => accepted,
            Some(_) = conversations.join_next() => continue,
            _ = serving.wait_for(|serving| *serving == Serving::Closed) => break,
        };
        let conversation = accepted(stream, router.clone(), serving.clone());
        conversations.spawn(async move {
            conversation.await;
            drop(place);
        });
    }
    drop(listener);
    let _ = timeout(FAREWELL, async { while conversations.join_next().await.is_some() {} }).await;
}

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> (TcpStream, Option<OwnedSemaphorePermit>) {
    // The semaphore is never closed.
    let place = places.clone().acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let _ = stream.set_nodelay(true);
                return (stream, place);
            }
            // Out of file descriptors, most likely: others will close theirs.
            Err(error) if error.kind() != io::ErrorKind::ConnectionAborted => {
                tracing::warn!(%error, "accepting a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(_) => {}
        }
    }
}

/// Answers the requests of one connection, until either side is done with it.
///
/// While draining, the answer says `Connection: close`, so that the caller goes elsewhere next time; an idle
/// connection is left alone, since closing it just as the caller writes to it would lose a review.
async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    mut serving: watch::Receiver<Serving>,
) {
    let phase = serving.clone();
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let (router, phase) = (router.clone(), phase.clone());
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
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = serving.wait_for(|serving| *serving == Serving::Closed) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}
