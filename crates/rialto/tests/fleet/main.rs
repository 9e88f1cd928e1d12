//! Replicas of Rialto behind a balancer that knows no session, with a real engine: any replica
//! answers for any session, and no fault of a replica, of the engine or of a road between them runs
//! a tool twice.

mod bad_input;
mod balanced;
mod failures;
mod fixture;
mod kills;
mod limits;
mod matrix;
mod placement;
mod reached;
mod rolling;
