//! Regular queries of the agent, and the facts from their answers.

use barevirt_qmp::newer::{GuestGetFsinfo, GuestGetLoad};
use barevirt_qmp::qapi::{Command, qga};
use barevirt_qmp::{Deadline, Error};
use serde::de::DeserializeOwned;

use super::schedule::Topic;
use super::{ANSWER, Facts, Task, answers, commands, is_frozen};

/// An error answer, or an answer in another form, counts as no answer.
fn understood<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(Error::Refused { .. } | Error::Answer { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Task {
    /// The agent's answer, if there is one: it may not know the command, or may refuse it.
    async fn queried<C: qga::QgaCommand>(&self, command: C) -> Result<Option<C::Ok>, Error> {
        understood(self.ask(command, ANSWER).await)
    }

    /// The same for a list.
    async fn listed<C, T>(&self, command: C) -> Result<Option<Vec<T>>, Error>
    where
        C: qga::QgaCommand + Command<Ok = Vec<T>>,
        T: DeserializeOwned,
    {
        understood(self.agent.execute_list(command, Deadline::after(ANSWER)).await)
    }

    /// Queries the topics that are due. Returns whether there were any.
    pub(super) async fn poll(&mut self) -> bool {
        let (now, frozen) = (self.now(), self.is_frozen());
        let due = self.schedule.as_ref().map(|schedule| schedule.due(now, frozen)).unwrap_or_default();
        let mut silent = false;
        for topic in &due {
            silent = silent || self.learn(*topic).await.is_err();
            if let Some(schedule) = &mut self.schedule {
                schedule.asked(*topic, self.begun.elapsed());
            }
        }
        if silent {
            tracing::debug!("the guest agent does not answer");
        }
        if !due.is_empty() {
            self.publish();
        }
        !due.is_empty()
    }

    /// Queries one topic. Facts that the agent does not report stay unchanged; fails if the agent does not
    /// answer.
    async fn learn(&mut self, topic: Topic) -> Result<(), Error> {
        match topic {
            Topic::Freeze => {
                if let Some(status) = self.queried(qga::guest_fsfreeze_status {}).await? {
                    self.saw_frozen(is_frozen(status));
                }
            }
            Topic::Version => {
                if let Some(answer) = self.queried(qga::guest_info {}).await? {
                    let (version, commands) = answers::agent(&answer);
                    (self.known.version, self.known.commands) = (Some(version), commands);
                }
            }
            Topic::System => self.learn_system().await?,
            Topic::FileSystems => {
                if let Some(answer) = self.listed(GuestGetFsinfo {}).await? {
                    self.known.file_systems = answers::file_systems(&answer);
                }
            }
            Topic::Users => {
                if let Some(answer) = self.listed(qga::guest_get_users {}).await? {
                    self.known.users = answers::users(&answer);
                }
            }
            Topic::Load => {
                if let Some(answer) = self.queried(GuestGetLoad {}).await? {
                    self.known.load = answers::load(&answer);
                }
            }
        }
        Ok(())
    }

    async fn learn_system(&mut self) -> Result<(), Error> {
        if let Some(answer) = self.queried(qga::guest_get_osinfo {}).await? {
            self.known.os = answers::os(&answer);
        }
        if let Some(answer) = self.listed(qga::guest_network_get_interfaces {}).await? {
            self.known.interfaces = answers::interfaces(&answer);
        }
        if let Some(answer) = self.queried(qga::guest_get_host_name {}).await? {
            self.known.host_name = answers::host_name(&answer);
        }
        if let Some(answer) = self.queried(qga::guest_get_timezone {}).await? {
            self.known.time_zone = Some(answers::time_zone(&answer));
        }
        Ok(())
    }

    /// Publishes the facts, if they changed.
    pub(super) fn publish(&self) {
        let facts = Facts {
            os: self.known.os.clone(),
            interfaces: self.known.interfaces.clone(),
            frozen: self.is_frozen(),
            unsupported: commands::missing(&self.known.commands, self.needed),
            file_systems: self.known.file_systems.clone(),
            load: self.known.load,
        };
        self.facts.send_if_modified(|told| {
            let new = told.as_ref() != Some(&facts);
            *told = Some(facts);
            new
        });
    }
}
