//! The server over TLS and keep-alive HTTP/1.1, on one core, beside a bare one that only reads the body and allows.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use axum::routing::post;
use palisade_admission::{Door, Metrics, Serving, ServingCertificate, Worlds, router};
use palisade_api::gates::FeatureGates;
use palisade_api::versions::{PolicyKind, PolicyVersions};
use palisade_cluster::Behind;
use palisade_engine::{
    Answer, BudgetAuthor, Census, Definition, Dependents, Judged, Kind, Place, Protections, Scale, Search,
    Settings, Subject, World,
};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::Error;
use crate::report::{Report, micros, quantile};
use crate::reviews::{Answered, SIZES, review};

const CONNECTIONS: usize = 8;
const ROUND: Duration = Duration::from_millis(1500);
const ROUNDS: usize = 7;

pub(crate) fn measure(report: &mut Report) -> Result<(), Error> {
    let folder = std::env::temp_dir().join(format!("palisade-bench-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    fs::write(folder.join("tls.crt"), certified.cert.pem())?;
    fs::write(folder.join("tls.key"), certified.signing_key.serialize_pem())?;

    report.section(
        "The server",
        &format!(
            "Reviews of labelled Deployments over TLS 1.3 and {CONNECTIONS} keep-alive HTTP/1.1 connections, the server \
             on one core and the client on the other, beside a bare server (the same sockets, TLS and HTTP) that \
             reads the body and answers allow. Medians of {ROUNDS} alternating rounds. Capacity is what one core \
             could answer: reviews by the processor time they took."
        ),
    );
    report.table(&[
        "object",
        "answer",
        "reviews/s",
        "bare",
        "p50",
        "p99",
        "bare p50",
        "bare p99",
        "capacity",
        "bare",
        "share of bare",
    ]);
    let palisade = Server::start("palisade", &folder)?;
    let bare = Server::start("bare", &folder)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let cases = SIZES.into_iter().flat_map(|size| [(size, Answered::Allowed), (size, Answered::Refused)]);
    for ((size, name), answered) in cases {
        let body = review(size, answered);
        let mut rounds = [Vec::new(), Vec::new()];
        for round in 0..=ROUNDS {
            for (server, rounds) in [&palisade, &bare].into_iter().zip(&mut rounds) {
                let measured = runtime.block_on(load(server, &folder, &body))?;
                // The first warms up.
                if round > 0 {
                    rounds.push(measured);
                }
            }
        }
        let [mine, theirs] = rounds.map(|rounds| Measured::median(&rounds));
        report.row(&[
            name.to_owned(),
            answered.name().to_owned(),
            format!("{:.0}", mine.rate),
            format!("{:.0}", theirs.rate),
            micros(mine.p50),
            micros(mine.p99),
            micros(theirs.p50),
            micros(theirs.p99),
            format!("{:.0}/s", mine.capacity),
            format!("{:.0}/s", theirs.capacity),
            format!("{:.0} %", 100.0 * mine.capacity / theirs.capacity),
        ]);
    }
    drop((palisade, bare));
    fs::remove_dir_all(&folder)?;
    Ok(())
}

#[derive(Clone, Copy)]
struct Measured {
    rate: f64,
    capacity: f64,
    p50: Duration,
    p99: Duration,
}

impl Measured {
    fn median(rounds: &[Self]) -> Self {
        let middle = |mut values: Vec<f64>| {
            values.sort_unstable_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let time = |value: fn(&Self) -> Duration| {
            Duration::from_secs_f64(middle(rounds.iter().map(|round| value(round).as_secs_f64()).collect()))
        };
        Self {
            rate: middle(rounds.iter().map(|round| round.rate).collect()),
            capacity: middle(rounds.iter().map(|round| round.capacity).collect()),
            p50: time(|round| round.p50),
            p99: time(|round| round.p99),
        }
    }
}

/// A server in a process of its own, on the first core.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(which: &str, folder: &Path) -> Result<Self, Error> {
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", "taskset", "-c", "0"])
            .arg(std::env::current_exe()?)
            .args(["serve", which])
            .arg(folder)
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().ok_or("no output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        Ok(Self { child, port: line.trim().parse()? })
    }

    /// The processor time it has used.
    fn busy(&self) -> Result<Duration, Error> {
        // Nanoseconds on the processor, by the scheduler's own count.
        let mut sum = 0;
        for task in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let text = fs::read_to_string(task?.path().join("schedstat"))?;
            sum += text.split(' ').next().unwrap_or_default().parse::<u64>()?;
        }
        Ok(Duration::from_nanos(sum))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn load(server: &Server, folder: &Path, body: &[u8]) -> Result<Measured, Error> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(folder.join("tls.crt"))?)?;
    let config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let mut request = format!(
        "POST /admit?timeout=5s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Accept: application/json, */*\r\nUser-Agent: kube-apiserver-admission\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    let request: Arc<[u8]> = request.into();

    let mut streams = Vec::new();
    for _ in 0..CONNECTIONS {
        let stream = TcpStream::connect(("127.0.0.1", server.port)).await?;
        stream.set_nodelay(true)?;
        streams.push(connector.connect(ServerName::try_from("localhost")?, stream).await?);
    }
    let (started, busy) = (Instant::now(), server.busy()?);
    let tasks: Vec<_> = streams
        .into_iter()
        .map(|mut stream| {
            let request = request.clone();
            async move {
                let mut times = Vec::new();
                let mut answer = vec![0; 16 << 10];
                while started.elapsed() < ROUND {
                    let asked = Instant::now();
                    stream.write_all(&request).await?;
                    read_answer(&mut stream, &mut answer).await?;
                    times.push(asked.elapsed());
                }
                Ok::<_, Error>(times)
            }
        })
        .collect();
    let mut times = Vec::new();
    for result in futures::future::join_all(tasks).await {
        times.extend(result?);
    }
    let (took, busy) = (started.elapsed(), server.busy()?.saturating_sub(busy));
    #[expect(clippy::cast_precision_loss, reason = "a count of requests")]
    let count = times.len() as f64;
    Ok(Measured {
        rate: count / took.as_secs_f64(),
        capacity: count / busy.as_secs_f64(),
        p50: quantile(&mut times, 0.5),
        p99: quantile(&mut times, 0.99),
    })
}

/// Reads one answer, by its content length.
async fn read_answer(stream: &mut (impl AsyncReadExt + Unpin), buffer: &mut [u8]) -> Result<(), Error> {
    let mut filled = 0;
    loop {
        let read = stream.read(&mut buffer[filled..]).await?;
        if read == 0 {
            return Err("the server closed the connection".into());
        }
        filled += read;
        let text = std::str::from_utf8(&buffer[..filled])?;
        if let Some(head) = text.find("\r\n\r\n") {
            if !text.starts_with("HTTP/1.1 200") {
                return Err(format!("the server answered {text}").into());
            }
            let length = text[..head].lines().find_map(|line| {
                line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse::<usize>().ok()
            });
            if filled >= head + 4 + length.ok_or("no content length")? {
                return Ok(());
            }
        }
    }
}

/// Everything is allowed to be asked, and nothing is there.
struct Empty;

impl Worlds for Empty {
    type World = Self;
    fn until(&self, _: tokio::time::Instant) -> Self {
        Self
    }

    async fn until_known(
        &self,
        _: &[PolicyKind],
        versions: &PolicyVersions,
        deadline: tokio::time::Instant,
    ) -> Result<(), Behind> {
        let _ = (versions, deadline);
        Ok(())
    }
}

static PROTECTIONS: OnceLock<Protections> = OnceLock::new();

impl World for Empty {
    async fn active_pods(&self, _: &str) -> Answer<Census> {
        Ok(Census::NONE)
    }
    async fn bound_claims(&self, _: &str) -> Answer<Census> {
        Ok(Census::NONE)
    }
    async fn instances(&self, _: &Definition) -> Answer<Census> {
        Ok(Census::NONE)
    }
    fn is_searched(&self, _: &str) -> bool {
        true
    }
    async fn scale(&self, _: &Kind<'_>) -> Answer<Option<Scale>> {
        Ok(None)
    }
    async fn mounting_pods(&self, _: &str, _: &BTreeSet<String>) -> Answer<BTreeMap<String, Census>> {
        Ok(BTreeMap::new())
    }
    async fn ready_endpoints(&self, _: &str, _: &BTreeSet<String>) -> Answer<BTreeMap<String, Census>> {
        Ok(BTreeMap::new())
    }
    async fn pods_on_node(&self, _: &str) -> Answer<Census> {
        Ok(Census::NONE)
    }
    async fn dependents(&self, _: Option<&str>, _: &BTreeSet<String>) -> Answer<Dependents> {
        Ok(Dependents::default())
    }
    fn protections(&self) -> &Protections {
        PROTECTIONS.get_or_init(Protections::default)
    }
    async fn namespace_labels(&self, _: &str) -> Answer<BTreeMap<String, String>> {
        Ok(BTreeMap::new())
    }
    async fn all_namespace_labels(&self) -> Answer<BTreeMap<String, BTreeMap<String, String>>> {
        Ok(BTreeMap::new())
    }
    async fn search(
        &self,
        _: Place<'_>,
        _: &(dyn Fn(&Subject<'_>, bool) -> Judged + Sync),
    ) -> Answer<Search> {
        Ok(Search::default())
    }
    fn note_author(&self, _: &BudgetAuthor<'_>, _: bool) -> u32 {
        0
    }
    async fn pod(&self, _: &str, _: &str) -> Answer<Option<String>> {
        Ok(None)
    }
}

/// Runs a server until killed; prints its port first.
pub(crate) fn serve(which: &str, folder: &Path) -> Result<(), Error> {
    let metrics = Arc::new(Metrics::default());
    let router = if which == "bare" {
        Router::new().route("/admit", post(bare))
    } else {
        let settings =
            Settings { own_namespace: "palisade-system".to_owned(), gates: FeatureGates::default() };
        router(Arc::new(Door::new(Empty, settings, metrics.clone(), |_| {})))
    };
    let certificate = fs::read_to_string(folder.join("tls.crt"))?;
    let certificate = ServingCertificate::new(&certificate, &fs::read_to_string(folder.join("tls.key"))?)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        println!("{}", listener.local_addr()?.port());
        let (_open, serving) = watch::channel(Serving::Open);
        palisade_admission::serve(listener, Arc::new(certificate), None, router, metrics, serving).await?;
        Ok(())
    })
}

async fn bare(_body: Bytes) -> Response {
    const ALLOW: &str = r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"705ab4f5-6393-11e8-b7cc-42010a800002","allowed":true}}"#;
    let mut response = Response::new(Body::from(ALLOW));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
