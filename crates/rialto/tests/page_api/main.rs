//! The server side of the page at `/ui/`: who may see it, what it is told, and what it may do.

mod acting;
mod fixture;
mod live;
mod reading;
mod rights;
mod trying;
