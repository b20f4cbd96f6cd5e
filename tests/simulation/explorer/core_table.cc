#include "tests/simulation/explorer/core_table.h"

#include <memory>
#include <utility>

#include "tests/server/core/given_answer.h"
#include "tests/simulation/explorer/bytes.h"
#include "tests/simulation/explorer/core_bytes.h"

namespace eplb::explorer {
namespace {

uint64_t KeyOf(uint32_t core, uint64_t kind, core::SessionId session, uint64_t value) {
  return (uint64_t{core} << 32) | (kind << 28) | (static_cast<uint64_t>(session) << 20) | value;
}

// Returns true for an answer to a proposal that is not in flight.
bool IsAboutAnother(const wire::UpMessage& message, int64_t proposed) {
  if (const auto* applied = std::get_if<wire::Applied>(&message)) {
    return applied->version != proposed;
  }
  if (const auto* ready = std::get_if<wire::Prepared>(&message)) return ready->version != proposed;
  return false;
}

void LeaveRecoveryEarly(core::State& state) {
  for (auto& [name, job] : state.jobs) {
    if (!job.current || job.phase != core::Phase::kRecovering || job.current->num_hello == 0)
      continue;
    const core::Rank* first = nullptr;
    for (const core::Rank& rank : job.current->ranks) {
      if (rank.said_hello) first = &rank;
    }
    for (core::Rank& rank : job.current->ranks) {
      if (rank.said_hello || first == nullptr) continue;
      rank.running_version = first->running_version;
      rank.running_digest = first->running_digest;
    }
    job.current->num_hello = kRanks;
  }
}

}  // namespace

const std::array<Permutation, kPermutations> kAllPermutations = {
    Permutation{0, 1, 2}, Permutation{0, 2, 1}, Permutation{1, 0, 2},
    Permutation{1, 2, 0}, Permutation{2, 0, 1}, Permutation{2, 1, 0}};

uint32_t Messages::Add(wire::UpMessage message) {
  DropSentences(message);
  Bytes bytes;
  AddMessage(message, bytes);
  return up.Add(std::move(bytes).Take(), std::move(message));
}

uint32_t Messages::Add(wire::DownMessage message) {
  DropSentences(message);
  Bytes bytes;
  AddMessage(message, bytes);
  return down.Add(std::move(bytes).Take(), std::move(message));
}

uint32_t Messages::Add(StoredJob job) {
  Bytes bytes;
  bytes.Add(int64_t{job.has_value()});
  if (job) {
    Simplify(job->memory, carries);
    bytes.Add(job->version);
    bytes.Add(job->next_version);
    AddEnd(job->end, bytes);
    bytes.Add(job->placement ? DigestOf(*job->placement) : Digest());
    AddMemory({.value = job->memory}, bytes);
  }
  return jobs.Add(std::move(bytes).Take(), std::move(job));
}

core::SessionId CoreTable::IdOf(SessionName session) {
  return 1 + (session.run * kRanks + session.rank) * kSessionNumbers + session.number;
}

SessionName CoreTable::NameOf(core::SessionId id) {
  const int64_t zero_based = id - 1;
  const int64_t rank = zero_based / kSessionNumbers;
  return {.run = static_cast<int>(rank / kRanks),
          .rank = static_cast<int>(rank % kRanks),
          .number = static_cast<int>(zero_based % kSessionNumbers)};
}

void CoreTable::Forget(core::StoredJob& job) const {
  if (mutant_ == Mutant::kRunsNotStored) {
    job.memory.run_number = 0;
    job.memory.run_id.clear();
    job.memory.gone.clear();
  }
  if (mutant_ == Mutant::kQuarantineNotStored) job.memory.quarantine.clear();
}

void CoreTable::Forget(core::State& state) const {
  for (auto& [name, job] : state.jobs) {
    if (mutant_ == Mutant::kReplacedComesBack) job.owner.ended_runs.clear();
    if (mutant_ == Mutant::kAdvancingIsReplaced && job.current) job.current->rate = {};
  }
}

void CoreTable::Forget(wire::Hello& hello) const {
  if (mutant_ == Mutant::kTermNotRaised) hello.highest_term = 0;
  if (mutant_ == Mutant::kReplacedComesBack) hello.run_number = 0;
  if (mutant_ == Mutant::kMemoryNotRecalled) hello.memory = {};
}

uint32_t CoreTable::Keep(core::State state) {
  Simplify(state, messages_.carries);
  std::string bytes = BytesOf(state);
  CoreInfo info = InfoOf(state);
  return entries_.Add(std::move(bytes), Entry{std::move(state), std::move(info)});
}

uint32_t CoreTable::Start(const Stored& stored) {
  std::vector<core::StoredJob> jobs;
  if (const StoredJob& job = messages_.jobs[stored.job]) {
    jobs.push_back(*job);
    Forget(jobs.back());
  }
  core::Core core(SmallConfig(), stored.term, std::move(jobs), kNow);
  return Keep(core::CorePeer::StateOf(core));
}

const Turned& CoreTable::OnMessage(uint32_t core, SessionName session, uint32_t up) {
  wire::UpMessage message = messages_.up[up];
  if (auto* hello = std::get_if<wire::Hello>(&message)) {
    hello->run_id = RunName(session.run);
    // A nonce is only compared with that of the same rank of the same run.
    hello->nonce = 7 + static_cast<uint64_t>(session.run);
    hello->rank = session.rank;
    hello->gpu = session.rank;
    Forget(*hello);
  }
  const core::SessionId id = IdOf(session);
  return Handle(core, KeyOf(core, 0, id, up), core::SessionMessage{id, std::move(message)});
}

const Turned& CoreTable::OnClosed(uint32_t core, SessionName session) {
  const core::SessionId id = IdOf(session);
  return Handle(core, KeyOf(core, 1, id, 0), core::SessionClosed{id, "closed"});
}

const Turned& CoreTable::On(uint32_t core, CoreEvent event, int max_layers) {
  const uint64_t key = KeyOf(core, 2 + static_cast<uint64_t>(event), 0, max_layers);
  const core::State& state = entries_[core].state;
  switch (event) {
    case CoreEvent::kReport:
      return Handle(core, key, core::SessionMessage{state.bindings.begin()->first, SmallReport()});
    case CoreEvent::kSolved: {
      const core::Job& job = state.jobs.begin()->second;
      core::DecisionQuestion question = *job.solving.question;
      std::optional<Placement> answer;
      if (!job.proposal) {
        answer = Better(*job.last_known->placement, max_layers);
      } else if (!job.chunks.rest.empty()) {
        answer = StartPlacement();
        question.force = true;
      }
      const Placement incumbent = *question.incumbent;
      const core::Solve asked{
          .job = kJob,
          .solve_id = job.solving.id,
          .question = std::make_shared<const core::DecisionQuestion>(std::move(question))};
      return Handle(core, key, core::Answering(asked, answer ? *std::move(answer) : incumbent));
    }
    case CoreEvent::kDeadlines:
    case CoreEvent::kGrace:
      break;
  }
  return Handle(core, key, core::Tick{});
}

const Turned& CoreTable::Handle(uint32_t core, uint64_t key, const core::Event& event) {
  const auto [found, is_new] = turn_ids_.try_emplace(key, static_cast<uint32_t>(turns_.size()));
  if (!is_new) return turns_[found->second];
  Turned& turned = turns_.emplace_back();
  turned.core = core;
  const core::State& state = entries_[core].state;
  const auto* said = std::get_if<core::SessionMessage>(&event);
  if (mutant_ == Mutant::kCancelIsFinal && said != nullptr &&
      IsAboutAnother(said->message, entries_[core].info.proposed)) {
    return turned;
  }
  core::Core running(state.config, 0, {}, kNow);
  core::CorePeer::StateOf(running) = state;
  Forget(core::CorePeer::StateOf(running));
  const bool is_grace = (key >> 28 & 15) == 2 + static_cast<uint64_t>(CoreEvent::kGrace);
  const bool is_tick = std::holds_alternative<core::Tick>(event);
  Run(running, event, is_tick ? (is_grace ? kAfterGrace : kAfterDeadlines) : kNow, turned);
  if (mutant_ == Mutant::kRecoveryLeftEarly) LeaveRecoveryEarly(core::CorePeer::StateOf(running));
  turned.core = Keep(std::move(core::CorePeer::StateOf(running)));
  return turned;
}

void CoreTable::Run(core::Core& core, const core::Event& event, absl::Time now, Turned& turned) {
  const core::Decision decision = core.Handle(event, now);
  for (const core::Effect& effect : decision.effects) AddEffect(effect, turned);
  if (mutant_ != Mutant::kCancelIsFinal) return;
  for (const core::Effect& effect : decision.effects) {
    const auto* send = std::get_if<core::Send>(&effect);
    const auto* cancel = send == nullptr ? nullptr : std::get_if<wire::Cancel>(&send->message);
    if (cancel == nullptr) continue;
    wire::Failed failed{.version = cancel->version, .code = wire::FailedCode::kCancelled};
    Run(core, core::SessionMessage{send->session, failed}, now, turned);
  }
}

void CoreTable::AddEffect(const core::Effect& effect, Turned& turned) {
  CoreEffect added;
  if (const auto* send = std::get_if<core::Send>(&effect)) {
    // A store that is not lost knows it already.
    if (std::holds_alternative<wire::Keep>(send->message) && !messages_.carries) return;
    turned.asks_for_body |= std::holds_alternative<wire::NeedPlacement>(send->message);
    added.session = CoreTable::NameOf(send->session);
    added.message = messages_.Add(send->message);
  } else if (const auto* close = std::get_if<core::Close>(&effect)) {
    added.kind = CoreEffect::Kind::kClose;
    added.session = CoreTable::NameOf(close->session);
  } else if (const auto* store = std::get_if<core::Store>(&effect)) {
    added.kind = CoreEffect::Kind::kStore;
    added.job = messages_.Add(StoredJob(store->job));
  } else if (const auto* term = std::get_if<core::StoreTerm>(&effect)) {
    added.kind = CoreEffect::Kind::kStoreTerm;
    added.term = term->term;
  } else {
    return;  // Record tells people; Solve is the phase SOLVING, which the explorer looks at
  }
  turned.effects.push_back(added);
}

uint32_t CoreTable::Renamed(uint32_t core, int permutation_0, int permutation_1) {
  if (permutation_0 == 0 && permutation_1 == 0) return core;
  const uint64_t key =
      (uint64_t{core} << 8) | static_cast<uint64_t>(permutation_0 * 8 + permutation_1);
  if (const auto found = renamed_.find(key); found != renamed_.end()) return found->second;
  core::State state = entries_[core].state;
  Rename(state, kAllPermutations[permutation_0], kAllPermutations[permutation_1]);
  const uint32_t renamed = Keep(std::move(state));
  renamed_[key] = renamed;
  return renamed;
}

}  // namespace eplb::explorer
