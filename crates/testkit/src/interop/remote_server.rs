//! A program that serves HTTP on a socket it inherits, and that is started again when it ends.
//!
//! The socket belongs to the test, so a client that connects while the program starts only waits a
//! little longer. It is inherited as standard input, which both Node and Python can listen on, and
//! which needs no unsafe code here.

use std::ffi::OsString;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::failure::{Failure, Result};
use crate::rialto::binary;

/// Dropped, it is gone.
#[derive(Debug)]
pub struct RemoteServer {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    keeper: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct State {
    child: Option<Child>,
    over: bool,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RemoteServer {
    /// Starts the program with these arguments.
    pub fn start(command: &[OsString]) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let state = Arc::new(Mutex::new(State::default()));
        let (kept, words) = (Arc::clone(&state), command.to_vec());
        // The program dies with the thread that started it, so that thread stays.
        let keeper = std::thread::spawn(move || keep(&listener, &words, &kept));
        Ok(Self {
            address,
            state,
            keeper: Some(keeper),
        })
    }

    /// `http://127.0.0.1:PORT`.
    pub fn origin(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// Starts it again and again until it is over.
fn keep(listener: &TcpListener, words: &[OsString], state: &Mutex<State>) {
    loop {
        {
            let mut state = lock(state);
            if state.over {
                return;
            }
            match spawn(listener, words) {
                Ok(child) => state.child = Some(child),
                // The test that waits for an answer reports it.
                Err(_) => return,
            }
        }
        // The lock is not held while it runs, or the test could not end it.
        while let Some(running) = &mut lock(state).child {
            match running.try_wait() {
                Ok(None) => {}
                Ok(Some(_)) | Err(_) => break,
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

fn spawn(listener: &TcpListener, words: &[OsString]) -> Result<Child> {
    let socket = OwnedFd::from(listener.try_clone()?);
    let child = Command::new(binary("testkit-server"))
        .arg("--launch")
        .args(words)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::from(socket))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    child.map_err(|error| Failure::from(error).during("start a server"))
}

impl Drop for RemoteServer {
    fn drop(&mut self) {
        {
            let mut state = lock(&self.state);
            state.over = true;
            if let Some(child) = &mut state.child {
                // It may have ended by itself.
                let _ = child.kill();
            }
        }
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
    }
}
