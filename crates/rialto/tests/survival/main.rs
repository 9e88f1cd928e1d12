//! A Rialto that goes on after a restart: the directory of its state.

mod state_dir;
