//! etcd, kube-apiserver, kube-controller-manager, kube-scheduler and KWOK, on loopback.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Node, ServiceAccount};
use kube::api::{Api, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;

use crate::TestkitError;
use crate::assets::Assets;
use crate::palisade::SERVICE_ACCOUNT;
use crate::pki::{self, Authority};
use crate::process::{Process, free_port, wait_until};

const PATIENCE: Duration = Duration::from_secs(60);
const NODES: usize = 3;

/// A running control plane. Dropped, it is gone.
pub struct ControlPlane {
    assets: Assets,
    folder: PathBuf,
    authority: Authority,
    port: u16,
    etcd: Process,
    apiserver: Process,
    apiserver_args: Vec<String>,
    etcd_port: u16,
    others: Vec<Process>,
}

impl ControlPlane {
    /// Starts one whose files are in `folder`, which is emptied first.
    pub async fn start(assets: &Assets, folder: &Path) -> Result<Self, TestkitError> {
        Self::start_with(assets, folder, Audit::Off, CallerCertificate::None).await
    }

    /// The same, with an [`audit_log`] of everything that Palisade asks of the API server.
    pub async fn start_audited(assets: &Assets, folder: &Path) -> Result<Self, TestkitError> {
        Self::start_with(assets, folder, Audit::On, CallerCertificate::None).await
    }

    /// The same as [`Self::start`], with an API server that shows webhooks a certificate. Its authority is in
    /// [`Self::callers_authority`].
    pub async fn start_with_caller_certificate(assets: &Assets, folder: &Path) -> Result<Self, TestkitError> {
        Self::start_with(assets, folder, Audit::Off, CallerCertificate::Shown).await
    }

    async fn start_with(
        assets: &Assets,
        folder: &Path,
        audit: Audit,
        caller: CallerCertificate,
    ) -> Result<Self, TestkitError> {
        // Whoever starts us may have chosen a provider already; that one serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        for part in ["etcd", "pki", "logs"] {
            let part = folder.join(part);
            if part.exists() {
                fs::remove_dir_all(&part)
                    .map_err(TestkitError::io(format!("emptying {}", part.display())))?;
            }
            fs::create_dir_all(&part).map_err(TestkitError::io(format!("creating {}", part.display())))?;
        }
        let folder = folder.canonicalize().map_err(TestkitError::io("finding the cluster's folder"))?;
        let logs = folder.join("logs");
        let authority = Authority::new(&folder.join("pki"), "kubernetes-ca")?;

        let etcd_port = free_port()?;
        let etcd = start_etcd(assets, &folder, etcd_port)?;
        let port = free_port()?;
        let mut apiserver_args = apiserver_args(&authority, &folder.join("pki"), etcd_port, port)?;
        if audit == Audit::On {
            apiserver_args.extend(audit_args(&folder)?);
        }
        if caller == CallerCertificate::Shown {
            apiserver_args.push(caller_arg(&folder.join("pki"))?);
        }
        let apiserver =
            Process::start("kube-apiserver", &assets.binary("kube-apiserver"), &apiserver_args, &logs)?;

        let mut plane = Self {
            assets: assets.clone(),
            folder,
            authority,
            port,
            etcd,
            apiserver,
            apiserver_args,
            etcd_port,
            others: Vec::new(),
        };
        plane.write_kubeconfig(&plane.kubeconfig(), "admin", &["system:masters"])?;
        plane.wait_ready().await?;
        plane.start_others()?;
        plane.create_nodes().await?;
        plane.wait_usable().await?;
        Ok(plane)
    }

    pub fn assets(&self) -> &Assets {
        &self.assets
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The administrator's.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.join("kubeconfig")
    }

    /// What signed the certificate that the API server shows webhooks, if it shows one.
    pub fn callers_authority(&self) -> PathBuf {
        self.folder.join("pki").join(format!("{CALLERS}.crt"))
    }

    /// A kubeconfig for somebody else, whose rights are what RBAC gives that name.
    pub fn kubeconfig_of(&self, user: &str) -> Result<PathBuf, TestkitError> {
        let path = self.folder.join("pki").join(format!("{}.kubeconfig", user.replace([':', '/'], "-")));
        self.write_kubeconfig(&path, user, &[])?;
        Ok(path)
    }

    /// A client with the administrator's rights.
    pub async fn client(&self) -> Result<Client, TestkitError> {
        self.client_with(&self.kubeconfig()).await
    }

    /// A client with the rights of a kubeconfig.
    pub async fn client_with(&self, kubeconfig: &Path) -> Result<Client, TestkitError> {
        let config = self.config(kubeconfig).await?;
        Client::try_from(config).map_err(TestkitError::api("making a client"))
    }

    async fn config(&self, kubeconfig: &Path) -> Result<Config, TestkitError> {
        let unreadable = |error: kube::config::KubeconfigError| TestkitError::Command {
            what: format!("reading {}", kubeconfig.display()),
            output: error.to_string(),
        };
        let read = Kubeconfig::read_from(kubeconfig).map_err(unreadable)?;
        Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.map_err(unreadable)
    }

    /// The administrator's client, which reports a 429 instead of trying again by itself.
    pub async fn impatient_client(&self) -> Result<Client, TestkitError> {
        let mut config = self.config(&self.kubeconfig()).await?;
        config.default_retry = false;
        Client::try_from(config).map_err(TestkitError::api("making a client"))
    }

    /// Starts Kubernetes' sample of an aggregated API server, which serves `flunders.wardle.example.com`, and
    /// returns the manifests that register it.
    pub fn start_sample_apiserver(&mut self) -> Result<String, TestkitError> {
        let port = free_port()?;
        let kubeconfig = self.kubeconfig();
        let args = [
            format!("--etcd-servers=http://127.0.0.1:{}", self.etcd_port),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={port}"),
            format!("--cert-dir={}", self.folder.join("pki").join("sample-apiserver").display()),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--authentication-kubeconfig={}", kubeconfig.display()),
            format!("--authorization-kubeconfig={}", kubeconfig.display()),
        ];
        let logs = self.folder.join("logs");
        let process =
            Process::start("sample-apiserver", &self.assets.binary("sample-apiserver"), &args, &logs)?;
        self.others.push(process);
        let service = json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "sample-apiserver", "namespace": "kube-system"},
            "spec": {"type": "ExternalName", "externalName": "localhost"}});
        let api_service = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": "v1alpha1.wardle.example.com"},
            "spec": {"group": "wardle.example.com", "version": "v1alpha1", "insecureSkipTLSVerify": true,
                "groupPriorityMinimum": 1000, "versionPriority": 15,
                "service": {"name": "sample-apiserver", "namespace": "kube-system", "port": port}}});
        Ok(format!("{service}\n---\n{api_service}\n"))
    }

    /// Stops the API server where it is, or lets it go on.
    pub fn apiserver_stands_still(&self, still: bool) {
        if still { self.apiserver.stand_still() } else { self.apiserver.go_on() }
    }

    /// Stops etcd where it is, or lets it go on.
    pub fn etcd_stands_still(&self, still: bool) {
        if still { self.etcd.stand_still() } else { self.etcd.go_on() }
    }

    /// Kills the sample of an aggregated API server. What registers it stays.
    pub fn kill_sample_apiserver(&mut self) {
        for process in self.others.extract_if(.., |process| process.name() == "sample-apiserver") {
            let mut process = process;
            process.kill();
        }
    }

    /// Kills the API server and starts it again, on the same address and data.
    pub async fn restart_apiserver(&mut self) -> Result<(), TestkitError> {
        self.apiserver.kill();
        let logs = self.folder.join("logs");
        let binary = self.assets.binary("kube-apiserver");
        self.apiserver = Process::start("kube-apiserver", &binary, &self.apiserver_args, &logs)?;
        self.wait_ready().await
    }

    /// The first of its processes that has ended by itself, if one has.
    pub fn failed(&mut self) -> Option<TestkitError> {
        let processes = [&mut self.etcd, &mut self.apiserver].into_iter().chain(&mut self.others);
        processes
            .into_iter()
            .find_map(|process| process.has_ended().then(|| process.not_up("has ended by itself")))
    }

    async fn wait_ready(&mut self) -> Result<(), TestkitError> {
        let client = self.client().await?;
        let apiserver = &mut self.apiserver;
        let ready = wait_until(PATIENCE, || {
            let ended = apiserver.has_ended();
            let asked = client.request_text(http_get("/readyz"));
            async move {
                // An API server that is starting may hold a connection without answering.
                ended || matches!(tokio::time::timeout(Duration::from_secs(2), asked).await, Ok(Ok(_)))
            }
        });
        if ready.await && !self.apiserver.has_ended() {
            Ok(())
        } else {
            Err(self.apiserver.not_up("did not become ready"))
        }
    }

    fn start_others(&mut self) -> Result<(), TestkitError> {
        let pki = self.folder.join("pki");
        let logs = self.folder.join("logs");
        let args = |list: &[&str]| list.iter().map(|&arg| arg.to_owned()).collect::<Vec<_>>();

        let kubeconfig = self.kubeconfig_of("system:kube-controller-manager")?;
        let mut manager =
            args(&["--use-service-account-credentials", "--leader-elect=false", "--secure-port=0"]);
        manager.push(format!("--kubeconfig={}", kubeconfig.display()));
        manager.push(format!(
            "--service-account-private-key-file={}",
            pki.join("service-accounts.key").display()
        ));
        manager.push(format!("--root-ca-file={}", self.authority.certificate().display()));

        let kubeconfig = self.kubeconfig_of("system:kube-scheduler")?;
        let mut scheduler = args(&["--leader-elect=false", "--secure-port=0"]);
        scheduler.push(format!("--kubeconfig={}", kubeconfig.display()));

        let stage = pki.join("pod-end.yaml");
        fs::write(&stage, include_str!("../stages/pod-end.yaml"))
            .map_err(TestkitError::io("writing a stage"))?;
        // It is all kubelets in one, and says how pods are as they do.
        let kubelets = pki.join("kwok.kubeconfig");
        self.write_kubeconfig(&kubelets, "kwok", &["system:masters", "system:nodes"])?;
        let mut kwok = args(&["--manage-all-nodes", "--node-lease-duration-seconds=40"]);
        kwok.push(format!("--kubeconfig={}", kubelets.display()));
        kwok.push(format!("--config={}", self.assets.stages().display()));
        kwok.push(format!("--config={}", stage.display()));

        for (name, args) in
            [("kube-controller-manager", manager), ("kube-scheduler", scheduler), ("kwok", kwok)]
        {
            self.others.push(Process::start(name, &self.assets.binary(name), &args, &logs)?);
        }
        Ok(())
    }

    async fn create_nodes(&self) -> Result<(), TestkitError> {
        let nodes: Api<Node> = Api::all(self.client().await?);
        for number in 0..NODES {
            let name = format!("node-{number}");
            let node = serde_json::from_value(json!({
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}},
            }));
            let node: Node = node.map_err(|error| TestkitError::io("writing a node")(error.into()))?;
            nodes
                .create(&PostParams::default(), &node)
                .await
                .map_err(TestkitError::api("creating a node"))?;
        }
        Ok(())
    }

    /// Waits until pods can be made: nodes are Ready, and the default service account is there.
    async fn wait_usable(&mut self) -> Result<(), TestkitError> {
        let client = self.client().await?;
        let nodes: Api<Node> = Api::all(client.clone());
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
        let namespaces: Api<Namespace> = Api::all(client);
        let usable = wait_until(PATIENCE, || async {
            let ready = |node: Node| {
                let status = node.status.unwrap_or_default();
                status.conditions.unwrap_or_default().iter().any(|c| c.type_ == "Ready" && c.status == "True")
            };
            let ready = nodes
                .list(&kube::api::ListParams::default())
                .await
                .is_ok_and(|list| list.into_iter().all(ready));
            let account = accounts.get_opt("default").await.is_ok_and(|account| account.is_some());
            ready && account && namespaces.get_opt("kube-system").await.is_ok_and(|found| found.is_some())
        });
        if usable.await {
            return Ok(());
        }
        Err(self.failed().unwrap_or_else(|| self.others[0].not_up("did not make the cluster usable")))
    }

    fn write_kubeconfig(&self, path: &Path, user: &str, groups: &[&str]) -> Result<(), TestkitError> {
        let identity = self.authority.client(user, groups)?;
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "palisade", "cluster": {
                "server": format!("https://127.0.0.1:{}", self.port),
                "certificate-authority": self.authority.certificate(),
            }}],
            "users": [{"name": user, "user": {
                "client-certificate": identity.certificate,
                "client-key": identity.key,
            }}],
            "contexts": [{"name": "palisade", "context": {"cluster": "palisade", "user": user}}],
            "current-context": "palisade",
        });
        fs::write(path, format!("{kubeconfig:#}\n"))
            .map_err(TestkitError::io(format!("writing {}", path.display())))
    }
}

fn start_etcd(assets: &Assets, folder: &Path, port: u16) -> Result<Process, TestkitError> {
    let client = format!("http://127.0.0.1:{port}");
    let peer = format!("http://127.0.0.1:{}", free_port()?);
    let args = [
        format!("--data-dir={}", folder.join("etcd").display()),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=default={peer}"),
        // Nothing here outlives the processes, so nothing needs to survive the machine.
        "--unsafe-no-fsync".to_owned(),
    ];
    Process::start("etcd", &assets.binary("etcd"), &args, &folder.join("logs"))
}

fn apiserver_args(
    authority: &Authority,
    pki: &Path,
    etcd: u16,
    port: u16,
) -> Result<Vec<String>, TestkitError> {
    let serving = authority.server("kube-apiserver")?;
    pki::signing_key(pki)?;
    let front_proxy_authority = Authority::new(pki, "front-proxy-ca")?;
    let front_proxy = front_proxy_authority.client("front-proxy-client", &[])?;
    Ok(vec![
        format!("--etcd-servers=http://127.0.0.1:{etcd}"),
        "--bind-address=127.0.0.1".into(),
        "--advertise-address=127.0.0.1".into(),
        format!("--secure-port={port}"),
        format!("--cert-dir={}", pki.display()),
        format!("--tls-cert-file={}", serving.certificate.display()),
        format!("--tls-private-key-file={}", serving.key.display()),
        format!("--client-ca-file={}", authority.certificate().display()),
        "--authorization-mode=Node,RBAC".into(),
        "--service-account-issuer=https://kubernetes.default.svc".into(),
        format!("--service-account-key-file={}", pki.join("service-accounts.pub").display()),
        format!("--service-account-signing-key-file={}", pki.join("service-accounts.key").display()),
        "--service-cluster-ip-range=10.0.0.0/24".into(),
        "--endpoint-reconciler-type=none".into(),
        // What an aggregated API server needs in order to trust us.
        format!("--requestheader-client-ca-file={}", front_proxy_authority.certificate().display()),
        "--requestheader-allowed-names=front-proxy-client".into(),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-".into(),
        "--requestheader-group-headers=X-Remote-Group".into(),
        "--requestheader-username-headers=X-Remote-User".into(),
        format!("--proxy-client-cert-file={}", front_proxy.certificate.display()),
        format!("--proxy-client-key-file={}", front_proxy.key.display()),
    ])
}

/// Whether the API server keeps an [`audit_log`]. It grows for as long as the cluster runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Audit {
    Off,
    On,
}

/// Whether the API server shows webhooks a certificate.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CallerCertificate {
    None,
    Shown,
}

const CALLERS: &str = "webhook-callers-ca";

/// Has the API server show a certificate of its own to every webhook.
fn caller_arg(pki: &Path) -> Result<String, TestkitError> {
    let identity = Authority::new(pki, CALLERS)?.client("kube-apiserver-admission", &[])?;
    let write = |name: &str, content: serde_json::Value| {
        let file = pki.join(name);
        let written = fs::write(&file, content.to_string());
        written.map_err(TestkitError::io(format!("writing {}", file.display()))).map(|()| file)
    };
    let kubeconfig = json!({"apiVersion": "v1", "kind": "Config", "users": [
        {"name": "*", "user": {"client-certificate": identity.certificate, "client-key": identity.key}},
    ]});
    let kubeconfig = write("admission-kubeconfig.json", kubeconfig)?;
    let api_version = "apiserver.config.k8s.io/v1";
    let configuration = json!({
        "apiVersion": api_version, "kind": "WebhookAdmissionConfiguration", "kubeConfigFile": kubeconfig,
    });
    let admission = write(
        "admission.json",
        json!({"apiVersion": api_version, "kind": "AdmissionConfiguration", "plugins": [
            {"name": "ValidatingAdmissionWebhook", "configuration": configuration},
        ]}),
    )?;
    Ok(format!("--admission-control-config-file={}", admission.display()))
}

/// Where the API server writes what Palisade asks of it, for a cluster whose files are in `folder`.
pub fn audit_log(folder: &Path) -> PathBuf {
    folder.join("logs").join("audit.log")
}

/// Logs every request of Palisade's that is about an object, without the object.
fn audit_args(folder: &Path) -> Result<Vec<String>, TestkitError> {
    let file = folder.join("pki").join("audit-policy.json");
    let policy = json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "None", "nonResourceURLs": ["*"]},
            {"level": "Metadata", "users": [SERVICE_ACCOUNT]},
            {"level": "None"},
        ],
    });
    fs::write(&file, policy.to_string()).map_err(TestkitError::io("writing the audit policy"))?;
    Ok(vec![
        format!("--audit-policy-file={}", file.display()),
        format!("--audit-log-path={}", audit_log(folder).display()),
        // One file for the whole run.
        "--audit-log-maxsize=100000".into(),
    ])
}

fn http_get(path: &str) -> http::Request<Vec<u8>> {
    let mut request = http::Request::new(Vec::new());
    *request.uri_mut() = path.parse().unwrap_or_default();
    request
}
