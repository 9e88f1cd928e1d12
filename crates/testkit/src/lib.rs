//! Development only.
