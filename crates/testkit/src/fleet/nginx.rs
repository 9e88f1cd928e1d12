//! nginx as a round-robin balancer, as Debian packages it (`cargo xtask setup` installs it).

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::failure::{Failure, Result};
use crate::interop::test_deps;
use crate::patience::{PATIENCE, look_until};

/// How often another port is tried: between the choice and the start, another process may take it.
const TRIES: usize = 5;

/// A running nginx. It ends with this value.
#[derive(Debug)]
pub struct Nginx {
    child: Child,
    address: SocketAddr,
    _files: TempDir,
}

impl Nginx {
    /// Starts nginx in front of these replicas.
    pub fn before(replicas: &[String]) -> Result<Self> {
        for _ in 0..TRIES {
            let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
            if let Some(nginx) = Self::start_at(address, replicas)? {
                return Ok(nginx);
            }
        }
        Err(Failure::new("nginx found no free port"))
    }

    fn start_at(address: SocketAddr, replicas: &[String]) -> Result<Option<Self>> {
        let files = tempfile::tempdir()?;
        let config = files.path().join("nginx.conf");
        let folder = files.path().display().to_string();
        std::fs::write(&config, text(address, replicas, &folder))?;
        let program = test_deps().join("nginx/usr/sbin/nginx");
        let child = Command::new(&program)
            .arg("-c")
            .arg(&config)
            .arg("-p")
            .arg(files.path())
            .args(["-e", "stderr"])
            .stdin(Stdio::null())
            .spawn()
            .map_err(|error| {
                let program = program.display();
                Failure::new(format!("{program} (cargo xtask setup installs it): {error}"))
            })?;
        let mut nginx = Self {
            child,
            address,
            _files: files,
        };
        let is_ready = look_until(PATIENCE, || {
            let has_ended = !matches!(nginx.child.try_wait(), Ok(None));
            let listens = TcpStream::connect(address).is_ok();
            (listens || has_ended).then_some(listens && !has_ended)
        });
        Ok((is_ready == Some(true)).then_some(nginx))
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn text(address: SocketAddr, replicas: &[String], folder: &str) -> String {
    let servers: String = replicas
        .iter()
        .map(|replica| format!("    server {replica};\n"))
        .collect();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| format!("  {kind}_temp_path {folder}/{kind};\n"))
        .collect();
    format!(
        "daemon off;
master_process off;
pid {folder}/pid;
events {{}}
http {{
  access_log off;
{temporary}  client_max_body_size 64m;
  upstream fleet {{
{servers}  }}
  server {{
    listen {address};
    location / {{
      proxy_pass http://fleet;
      proxy_http_version 1.1;
      proxy_set_header Host $http_host;
      proxy_set_header Connection \"\";
      proxy_buffering off;
      proxy_request_buffering off;
      proxy_read_timeout 1h;
    }}
  }}
}}
"
    )
}
