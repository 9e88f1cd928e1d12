//! A Rialto that goes on after a restart: the directory of its state, what clients carry, and the
//! socket that outlives it.

mod clients;
mod request_states;
mod sessions;
mod state_dir;
mod systemd;
