#include "tests/simulation/explorer/core_bytes.h"

#include <algorithm>
#include <map>
#include <utility>

#include "tests/simulation/explorer/bytes.h"

namespace eplb::explorer {
namespace {

using core::Job;
using core::Rank;
using core::Run;
using core::State;

// Whoever adds a field: say in BytesOf that it tells states apart, or in Simplify that it does not.
static_assert(HasSize(sizeof(Rank), 448), "core::Rank changed: look at BytesOf and Simplify");
static_assert(HasSize(sizeof(Run), 840), "core::Run changed: look at BytesOf and Simplify");
static_assert(HasSize(sizeof(core::Proposal), 408),
              "core::Proposal changed: look at BytesOf and Simplify");
static_assert(HasSize(sizeof(State), 7952), "core::State changed: look at BytesOf and Simplify");
static_assert(HasSize(sizeof(Job), 5472), "core::Job changed: look at BytesOf and Simplify");

int IndexOf(const std::string& run_id) { return run_id == RunName(1) ? 1 : 0; }

// Only how it ended is looked at by decisions; the rest is words.
void Simplify(v1::RunEnd& end) {
  end.clear_reason();
  end.clear_elsewhere();  // for people, too
  end.set_unix_micros(absl::ToUnixMicros(kNow));
  end.clear_step();
}

v1::RunEnd EndIn(const core::StoreStamp& stored) {
  v1::RunEnd end;
  (void)end.ParseFromString(stored.end);
  return end;
}

void Simplify(Run& run) {
  Simplify(run.end);
  if (run.ending == core::Ending::kLive) run.end.Clear();
  run.failure.reset();  // words only
  run.took_over.clear();
  run.moved.clear();
  run.reuse_told = false;
  run.since = kNow;
  run.front = {};   // there are no reports
  run.asking = {};  // and no engines
  // Steps advance until deadlines pass; only the first run may hang.
  run.rate = {.told = {}, .due = kBetween};
  if (IndexOf(run.name) == 1) run.rate.due = absl::InfiniteFuture();
  for (Rank& rank : run.ranks) {
    if (rank.away_since != absl::InfiniteFuture()) rank.away_since = kNow;
    rank.failed = false;  // words only, like the next
    rank.cut = false;
    // Only the order of the numbers matters. RankTable knows which of its streams are older.
    if (rank.session_number != 0) rank.session_number = kNewestSession;
    rank.step = 0;
    rank.answer_seconds = 0;
    rank.pause_seconds = 0;
    rank.step_seconds = 0;
    rank.dropped_steps = 0;
    rank.reported_step = -1;
    rank.report_steps = 0;
    rank.silent_since.clear();
    rank.reports_dropped = 0;
    rank.ahead_told = false;
    rank.leapt_to = -1;
  }
}

void Simplify(Job& job, bool carries) {
  job.in_phase = {.since = kNow, .retried_at = kNow};
  job.owner.due = job.owner.due > kNow ? kBetween : absl::InfinitePast();
  if (job.first_hello != 0) job.first_hello = 1;
  job.versions.ran.clear();  // a second placement of a number is an event
  job.refused = {};          // words only, like the next
  job.stall = {};
  job.reports = {};  // there are none
  if (job.store.stamp && !job.store.stamp->end.empty()) {
    v1::RunEnd end = EndIn(*job.store.stamp);
    Simplify(end);
    job.store.stamp->end = end.SerializeAsString();
  }
  if (job.owner.ended_before) Simplify(*job.owner.ended_before);
  if (job.current) Simplify(*job.current);
  if (job.candidate) Simplify(*job.candidate);
  job.store.attempted_at = absl::InfinitePast();
  // Records of decisions: no decision reads them, but those of operators, of which there are none.
  job.plans.clear();
  job.unattended_since = absl::InfiniteFuture();  // no run lasts until a job expires
  job.windows = {};
  job.budgets = {};                         // for people only, like the next
  job.orders.paused_by_lost_store = false;  // words only
  if (!job.quarantine.empty()) job.quarantine = "why";
  if (!carries) {  // only the store's memory is ever read
    job.memory.serial = 0;
    job.memory.is_ours = false;
    job.memory.tell = core::Tell::kNobody;
  }
  // Its pauses shorten chunks, which have one layer here.
  job.decisions = {};
  job.speeds = {};  // the ranks record no step times here
  if (job.solving.id != 0) job.solving.id = 1;
  if (job.solving.id != 0) job.solving.since = kNow;
  job.solving.began_at = core::kNoTime;
  job.solving.seconds = 0;
  job.chunks.falls.clear();  // they order chunks of several layers
  job.chunks.reason.clear();
  job.chunks.decision = 0;  // for the ranks' logs
  if (job.pending_fetch.session != 0) job.pending_fetch.at = kNow;
  if (job.proposal) {
    core::Proposal& proposal = *job.proposal;
    proposal.decision_count = 0;
    proposal.message.reason.clear();
    proposal.message.decision = 0;
    proposal.received_bytes = 0;
    proposal.most_received_bytes = 0;
    proposal.proposed_at = kNow;
    proposal.prepare_seconds = 0;
    proposal.longest_pause_seconds = 0;
    proposal.withdrawal.clear();
  }
  job.step = 0;
}

void Add(const Rank& rank, Bytes& bytes) {
  bytes.Add((rank.said_hello ? 1 : 0) + (rank.finished ? 2 : 0) +
            4 * static_cast<int64_t>(rank.answer));
  bytes.Add(static_cast<int64_t>(rank.nonce));
  bytes.Add(rank.session);
  bytes.Add(int64_t{rank.away_since == kNow});
  bytes.Add(rank.running_version);
  bytes.Add(rank.running_digest);
  bytes.Add(rank.prepared_version);
  bytes.Add(rank.staging_rows);
  bytes.Add(rank.staging_layers);
}

// Shape, grid, bytes, settings and periods are those of the one job in every run; they never
// change, and the daemon asks for no other pace. With one shape fresh_version stays 0.
void Add(const std::optional<Run>& run, Bytes& bytes) {
  bytes.Add(int64_t{run.has_value()});
  if (!run) return;
  bytes.Add(run->name);
  bytes.Add(int64_t{run->num_hello});
  bytes.Add(int64_t{run->num_connected});
  bytes.Add(int64_t{run->num_finished});
  bytes.Add(run->run_number);
  bytes.Add(run->claimed);
  bytes.Add(static_cast<int64_t>(run->ending));
  bytes.Add(static_cast<int64_t>(run->end.ending()));
  for (const Rank& rank : run->ranks) Add(rank, bytes);
}

void Add(const core::Proposal& proposal, Bytes& bytes) {
  AddPropose(proposal.message, bytes);
  bytes.Add(int64_t{proposal.num_prepared});
  bytes.Add(int64_t{proposal.num_applied});
  bytes.Add(int64_t{proposal.num_failed});
  bytes.Add(proposal.plan_hash.value_or(Digest{}));
  bytes.Add(proposal.applied_step.value_or(-1));
}

void Add(const Job& job, Bytes& bytes) {
  bytes.Add(static_cast<int64_t>(job.phase));
  Add(job.current, bytes);
  Add(job.candidate, bytes);
  for (const wire::EndedRun& gone : job.owner.ended_runs) {
    bytes.Add(gone.run_id);
    bytes.Add(gone.run_number);
  }
  bytes.Add(job.owner.run_number);
  bytes.Add(job.term);
  bytes.Add(job.first_hello);
  bytes.Add(int64_t{job.owner.due > kNow});
  bytes.Add(job.memory.term);
  bytes.Add(job.memory.serial);
  bytes.Add(int64_t{job.memory.is_ours} * 4 + static_cast<int64_t>(job.memory.tell));
  bytes.Add(job.owner.run_id);
  bytes.Add(job.quarantine);
  bytes.Add(int64_t{job.last_known.has_value()});
  if (job.last_known) {
    bytes.Add(job.last_known->version);
    bytes.Add(job.last_known->digest);
  }
  bytes.Add(int64_t{job.store.stamp.has_value()});
  if (job.store.stamp) {
    bytes.Add(job.store.stamp->version);
    bytes.Add(job.store.stamp->next_version);
    bytes.Add(job.store.stamp->digest);
    bytes.Add(job.store.stamp->end);
  }
  AddEnd(job.owner.ended_before, bytes);
  bytes.Add(job.versions.next);
  bytes.Add(int64_t{job.store.error.ok()});
  bytes.Add(int64_t{job.store.due});
  bytes.Add(job.solving.id);
  bytes.Add(int64_t{job.chunks.total});
  for (const core::Chunk& chunk : job.chunks.rest) {
    for (const LayerPlacement& layer : chunk.layers) {
      bytes.Add(int64_t{layer.layer.value});
      for (const int32_t expert : layer.physical_to_logical) bytes.Add(int64_t{expert});
      for (const int32_t rank : layer.replica_rank) bytes.Add(int64_t{rank});
    }
  }
  bytes.Add(int64_t{job.proposal.has_value()});
  if (job.proposal) Add(*job.proposal, bytes);
  bytes.Add(int64_t{job.pending_fetch.rank});
  bytes.Add(job.pending_fetch.session);
}

class Renamer {
 public:
  Renamer(const Permutation& first, const Permutation& second) : to_{&first, &second} {}

  void Apply(Job& job) const {
    if (job.pending_fetch.session != 0) {
      job.pending_fetch.rank =
          Rename(CoreTable::NameOf(job.pending_fetch.session).run, job.pending_fetch.rank);
    }
    job.pending_fetch.session = Rename(job.pending_fetch.session);
    if (job.current) Apply(*job.current);
    if (job.candidate) Apply(*job.candidate);
  }

  void Apply(Run& run) const {
    const int index = IndexOf(run.name);
    std::vector<Rank> renamed(run.ranks.size());
    for (int rank = 0; rank < kRanks; ++rank) {
      Rank one = run.ranks[rank];
      one.session = Rename(one.session);
      renamed[Rename(index, rank)] = one;
    }
    run.ranks = std::move(renamed);
  }

  core::SessionId Rename(core::SessionId id) const {
    if (id == 0) return 0;
    SessionName name = CoreTable::NameOf(id);
    name.rank = Rename(name.run, name.rank);
    return CoreTable::IdOf(name);
  }

  int Rename(int run, int rank) const { return (*to_[run])[rank]; }

 private:
  const Permutation* to_[kRuns];
};

}  // namespace

void Simplify(wire::JobMemory& memory, bool carries) {
  if (!carries) {
    memory.serial = 0;
    memory.next_version = 0;  // a store's is beside it
  }
  memory.paused_by_lost_store = false;
  if (!memory.quarantine.empty()) memory.quarantine = "why";
  memory.last_decision_step.reset();
  memory.back_off_length = 0;
  memory.back_off_to_skip = 0;
  memory.account_windows = 0;
  memory.account_saved_peak_tokens.reset();
  memory.account_pause_seconds = 0;
  memory.saved = {};
  memory.report_seconds = 0;
  memory.slow_gpus.clear();
  memory.gap_seconds = 0;
}

void AddEnd(const std::optional<v1::RunEnd>& end, Bytes& bytes) {
  bytes.Add(end ? static_cast<int64_t>(end->ending()) : int64_t{-1});
  if (end) bytes.Add(end->run_id());
}

void Simplify(State& state, bool carries) {
  state.decision_count = 0;
  state.last_solve_id = 0;
  state.term_decision_count = -1;
  state.last_hello = 0;
  state.refusals.clear();
  state.last_stored_job.clear();
  state.term_attempt = absl::InfinitePast();
  state.undo.reset();
  state.counters = {};
  for (auto& [name, job] : state.jobs) Simplify(job, carries);
}

std::string BytesOf(const State& state) {
  Bytes bytes;
  bytes.Add(state.term);
  bytes.Add(int64_t{state.term_stored});
  bytes.Add(int64_t{state.draining});
  for (const auto& [session, binding] : state.bindings) {
    bytes.Add(session);
    bytes.Add(int64_t{binding.rank});
    bytes.Add(binding.run_id);
  }
  for (const auto& [name, job] : state.jobs) Add(job, bytes);
  return std::move(bytes).Take();
}

void Rename(State& state, const Permutation& first, const Permutation& second) {
  const Renamer renamer(first, second);
  std::map<core::SessionId, core::SessionBinding> bindings;
  for (auto& [session, binding] : state.bindings) {
    binding.rank = renamer.Rename(IndexOf(binding.run_id), binding.rank);
    bindings[renamer.Rename(session)] = binding;
  }
  state.bindings = std::move(bindings);
  for (auto& [name, job] : state.jobs) renamer.Apply(job);
}

CoreInfo InfoOf(const State& state) {
  CoreInfo info;
  info.term = state.term;
  for (const auto& [session, binding] : state.bindings) info.sessions |= uint64_t{1} << session;
  if (state.jobs.empty()) return info;
  const Job& job = state.jobs.begin()->second;
  info.has_job = true;
  info.phase = job.phase;
  info.job_term = job.term;
  info.known = job.last_known;
  info.next_version = job.versions.next;
  info.proposed = job.proposal ? job.proposal->message.version : 0;
  info.sessions |= uint64_t{1} << job.pending_fetch.session;
  info.has_candidate = job.candidate.has_value();
  info.solving = job.solving.id != 0;
  info.has_rest = !job.chunks.rest.empty();
  if (job.candidate) info.knows[IndexOf(job.candidate->name)] = true;
  if (!job.current) return info;
  const Run& current = *job.current;
  info.current = IndexOf(current.name);
  info.knows[info.current] = true;
  info.all_said_hello = current.num_hello == current.world_size();
  info.all_connected = current.num_connected == current.world_size();
  info.claimed = current.claimed;
  info.any_connected = current.num_connected > 0;
  info.live = current.ending == core::Ending::kLive;
  const auto is_away = [](const Rank& rank) {
    return rank.said_hello && rank.session == 0 && !rank.finished;
  };
  info.somebody_away =
      (info.live && std::any_of(current.ranks.begin(), current.ranks.end(), is_away)) ||
      (job.candidate &&
       std::any_of(job.candidate->ranks.begin(), job.candidate->ranks.end(), is_away));
  return info;
}

}  // namespace eplb::explorer
