//! The server side of the page at `/ui/`: access to it, what it shows, and what it does.

mod acting;
mod fixture;
mod live;
mod reading;
mod rights;
mod trying;
