//! A Rialto that goes on after a restart: the directory of its state, and what clients carry.

mod request_states;
mod sessions;
mod state_dir;
