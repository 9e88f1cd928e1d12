//! Everything of Rialto that touches the world: the doors clients come in by, the children and remote
//! servers behind, and the tasks between them. Protocol decisions are not made here.

pub mod audit;
pub mod backend_face;
pub mod escape;
pub mod line_sink;
pub mod settings;
pub mod tasks;
