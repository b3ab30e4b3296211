//! What happens in the model, at random.

use crate::node::NodeState;
use proptest::prelude::*;

#[derive(Clone, Debug)]
pub(super) enum Event {
    /// The instance's reconciler runs, with caches that lag by this many events.
    Vmi(usize),
    /// A migration's reconciler runs.
    Migration(usize, usize),
    /// The watch of migrations delivers.
    Watch(usize),
    /// A user creates a migration; even a second one, as when admission saw an old list.
    Ask(bool),
    Cancel(usize),
    PolicyChanges,
    /// Something that each target pod needs goes, or is back.
    Lacks(bool),
    DeleteVmi,
    DeletePod(usize),
    ForcePod(usize),
    ControllerDies,
    PodStarts,
    PodsSay,
    PodRemoved,
    ContainerDies(usize),
    /// A launcher ends, for instance because its QEMU has died, and its handler hears of it.
    LauncherEnds(usize),
    /// All handlers are killed, and others take over.
    HandlersDie,
    TargetPrepares,
    SourceBegins,
    SourceStarts,
    SourceSends,
    SourceGivesUp,
    TargetRefuses,
    TargetArrives,
    TargetReports,
    TargetFails,
    SourceReads,
    /// For a while nothing on the node is done, except what needs no API server.
    NodeSlow(usize),
    NodeLost(usize),
    NodeBack(usize),
    /// Nothing runs there for certain.
    NodeGone(usize, NodeState),
    Wait,
}

pub(super) fn events() -> impl Strategy<Value = Vec<Event>> {
    let off = prop_oneof![Just(NodeState::Gone), Just(NodeState::OutOfService)];
    let event = prop_oneof![
        24 => (0..3usize).prop_map(Event::Vmi),
        40 => (0..3usize, 0..3usize).prop_map(|(which, lag)| Event::Migration(which, lag)),
        16 => (0..3usize).prop_map(Event::Watch),
        8 => Just(Event::Ask(false)),
        1 => Just(Event::Ask(true)),
        2 => (0..3usize).prop_map(Event::Cancel),
        3 => Just(Event::PolicyChanges),
        1 => Just(Event::Lacks(true)),
        4 => Just(Event::Lacks(false)),
        1 => Just(Event::DeleteVmi),
        1 => (0..3usize).prop_map(Event::DeletePod),
        2 => (0..3usize).prop_map(Event::ForcePod),
        3 => Just(Event::ControllerDies),
        16 => Just(Event::PodStarts),
        16 => Just(Event::PodsSay),
        6 => Just(Event::PodRemoved),
        2 => (0..3usize).prop_map(Event::ContainerDies),
        2 => (0..3usize).prop_map(Event::LauncherEnds),
        2 => Just(Event::HandlersDie),
        12 => Just(Event::TargetPrepares),
        12 => Just(Event::SourceBegins),
        10 => Just(Event::SourceStarts),
        10 => Just(Event::SourceSends),
        2 => Just(Event::SourceGivesUp),
        3 => Just(Event::TargetRefuses),
        10 => Just(Event::TargetArrives),
        10 => Just(Event::TargetReports),
        4 => Just(Event::TargetFails),
        6 => Just(Event::SourceReads),
        3 => (0..3usize).prop_map(Event::NodeSlow),
        2 => (0..3usize).prop_map(Event::NodeLost),
        4 => (0..3usize).prop_map(Event::NodeBack),
        1 => (0..3usize, off).prop_map(|(which, state)| Event::NodeGone(which, state)),
        6 => Just(Event::Wait),
    ];
    proptest::collection::vec(event, 1..200)
}
