//! What runs, seen from outside: the admin socket, the commands that read it, and hosts that attach
//! to one local service.

mod attach;
mod commands;
mod fixture;
mod services;
mod socket;
mod starting;
