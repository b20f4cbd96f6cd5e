// The daemon's core as a table: the real core::Core runs once for each pair of a state and an event
// that is met, and the outcome is kept. States are told apart by their bytes, after what cannot
// change a decision is taken out:
// - sentences, counters and figures that are only shown;
// - times: every deadline may pass at any moment, so that when a state was entered says nothing; a
//   run's steps advance until deadlines pass;
// - load windows and back-off: a decision is an event of the explorer's, whenever the core is IDLE;
// - what is kept for a failing store: the store of the explorer does not fail (the simulation's
//   does).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "server/core/core.h"
#include "server/core/state/state.h"
#include "tests/simulation/explorer/interned.h"
#include "tests/simulation/explorer/mutant.h"
#include "tests/simulation/explorer/small_world.h"

namespace eplb::explorer {

// A stream of a rank. `number` tells the streams of a rank apart; it is used again once no state
// remembers its last use, which renames a session and nothing else.
struct SessionName {
  int run = 0;
  int rank = 0;
  int number = 0;
};
inline constexpr int kSessionNumbers = 8;

// New position of each rank of a run.
using Permutation = std::array<uint8_t, kRanks>;
inline constexpr int kPermutations = 6;
extern const std::array<Permutation, kPermutations> kAllPermutations;  // [0] is the identity

// A job's record on the disk; none before the first one.
using StoredJob = std::optional<core::StoredJob>;

// All that travels or is written, each once. What ranks carry for a daemon that lost its store is
// only looked at where stores are lost: a store that is not lost knows it already.
struct Messages {
  Messages() { (void)Add(StoredJob()); }
  uint32_t Add(wire::UpMessage message);
  uint32_t Add(wire::DownMessage message);
  uint32_t Add(StoredJob job);  // 0: none
  bool carries = false;         // stores may be lost
  Interned<wire::UpMessage> up;
  Interned<wire::DownMessage> down;
  Interned<StoredJob> jobs;
};

// Content of the disk.
struct Stored {
  int64_t term = 0;
  uint32_t job = 0;  // in Messages::jobs
  // Values before the newest run, as a backup holds them.
  int64_t term_before = 0;
  uint32_t job_before = 0;
  int owner = -1;         // the newest run that owned the job under daemons on this store
  uint32_t replaced = 0;  // bit per run that did before it
};

struct CoreEffect {
  enum class Kind : uint8_t { kSend, kClose, kStore, kStoreTerm };
  Kind kind = Kind::kSend;
  SessionName session;   // kSend, kClose
  uint32_t message = 0;  // kSend: in Messages::down
  int64_t term = 0;      // kStoreTerm
  uint32_t job = 0;      // kStore: in Messages::jobs
};

// One decision.
struct Turned {
  uint32_t core = 0;  // the state after it
  std::vector<CoreEffect> effects;
  // The lowest connected rank is asked: the one rule that is not symmetric.
  bool asks_for_body = false;
};

// Values of a state that the explorer uses.
struct CoreInfo {
  core::Phase phase = core::Phase::kRecovering;
  bool has_job = false;
  int current = -1;        // run
  bool knows[kRuns] = {};  // has this run as current or candidate
  bool all_said_hello = false;
  bool all_connected = false;
  bool somebody_away = false;
  bool live = false;
  bool has_candidate = false;
  bool solving = false;
  bool has_rest = false;       // chunks are still to be proposed
  bool any_connected = false;  // a rank of the current run
  int64_t claimed = 0;         // number of the current run under an earlier daemon
  std::optional<core::LastKnownPlacement> known;
  int64_t next_version = 0;
  int64_t term = 0;
  int64_t job_term = 0;
  int64_t proposed = 0;   // version in flight, or 0
  uint64_t sessions = 0;  // bit per session that the core still names
};

enum class CoreEvent { kReport, kSolved, kDeadlines, kGrace };

class CoreTable {
 public:
  CoreTable(Messages* messages, Mutant mutant) : messages_(*messages), mutant_(mutant) {}

  // The daemon starts with what is stored.
  uint32_t Start(const Stored& stored);
  const Turned& OnMessage(uint32_t core, SessionName session, uint32_t up);
  const Turned& OnClosed(uint32_t core, SessionName session);
  // max_layers: of kSolved, as Better. An answer beside a chunk in flight goes back to the start.
  const Turned& On(uint32_t core, CoreEvent event, int max_layers = 0);

  const CoreInfo& Info(uint32_t core) const { return entries_[core].info; }
  // The state with the ranks of both runs renamed.
  uint32_t Renamed(uint32_t core, int permutation_0, int permutation_1);
  static core::SessionId IdOf(SessionName session);
  static SessionName NameOf(core::SessionId id);

  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    core::State state;
    CoreInfo info;
  };

  uint32_t Keep(core::State state);
  // Drops what a mutant forgets.
  void Forget(core::StoredJob& job) const;
  void Forget(core::State& state) const;
  void Forget(wire::Hello& hello) const;
  const Turned& Handle(uint32_t core, uint64_t key, const core::Event& event);
  void Run(core::Core& core, const core::Event& event, absl::Time now, Turned& turned);
  void AddEffect(const core::Effect& effect, Turned& turned);

  Messages& messages_;
  const Mutant mutant_;
  Interned<Entry> entries_;
  absl::flat_hash_map<uint64_t, uint32_t> turn_ids_;
  std::deque<Turned> turns_;
  absl::flat_hash_map<uint64_t, uint32_t> renamed_;
};

}  // namespace eplb::explorer
