//! What happens in the model, at random.

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
    DeleteVmi,
    DeletePod(usize),
    ForcePod(usize),
    ControllerDies,
    PodStarts,
    PodsSay,
    PodRemoved,
    ContainerDies(usize),
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
    NodeLost(usize),
    NodeBack(usize),
    NodeGone(usize),
    Wait,
}

pub(super) fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        24 => (0..3usize).prop_map(Event::Vmi),
        40 => (0..3usize, 0..3usize).prop_map(|(which, lag)| Event::Migration(which, lag)),
        16 => (0..3usize).prop_map(Event::Watch),
        8 => Just(Event::Ask(false)),
        1 => Just(Event::Ask(true)),
        2 => (0..3usize).prop_map(Event::Cancel),
        3 => Just(Event::PolicyChanges),
        1 => Just(Event::DeleteVmi),
        1 => (0..3usize).prop_map(Event::DeletePod),
        2 => (0..3usize).prop_map(Event::ForcePod),
        3 => Just(Event::ControllerDies),
        16 => Just(Event::PodStarts),
        16 => Just(Event::PodsSay),
        6 => Just(Event::PodRemoved),
        3 => (0..3usize).prop_map(Event::ContainerDies),
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
        2 => (0..3usize).prop_map(Event::NodeLost),
        2 => (0..3usize).prop_map(Event::NodeBack),
        1 => (0..3usize).prop_map(Event::NodeGone),
        6 => Just(Event::Wait),
    ];
    proptest::collection::vec(event, 1..200)
}
