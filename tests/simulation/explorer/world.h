// One state of everything, and all that can happen in it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/simulation/explorer/core_table.h"
#include "tests/simulation/explorer/interned.h"
#include "tests/simulation/explorer/mutant.h"
#include "tests/simulation/explorer/rank_table.h"

namespace eplb::explorer {

// How often each thing may happen on one path.
struct Bounds {
  int chunks = 2;        // versions proposed
  int cancels = 0;       // a deadline or a grace that passes at any moment
  int runs = 0;          // new runs, behind processes that were killed
  int beside = 0;        // new runs beside an older one, which hangs or trains on
  int crashes = 0;       // crashes of the daemon, between any two effects
  int losses = 0;        // crashes behind which the store is empty, or as it was before a relaunch
  int unknown = 0;       // votes without a result on some ranks
  int transfers = 0;     // transfers that fail
  int faults = 0;        // messages lost, doubled or overtaken, streams cut
  int replaced = 0;      // decisions made while a chunk is in flight, which replace the other one
  bool cuts = true;      // streams are cut, out of `faults`
  bool disorder = true;  // messages of a stream are lost, doubled or overtaken, out of `faults`
};

using Cells = std::array<std::array<uint32_t, kRanks>, kRuns>;

struct World {
  uint32_t core = 0;
  uint32_t stored = 0;
  Cells cells{};
  bool hung = false;      // the training threads of run 0 do nothing any more
  int64_t committed = 0;  // the highest version that any rank may run
  Bounds left;
};

// Moves from one state to the next, for traces.
enum class Move : uint8_t {
  kStart,
  kDeliverDown,
  kConnect,
  kGiveUpStream,
  kEnterVote,
  kSkipVote,
  kTakeOutcome,
  kUp,
  kOldEnds,
  kCut,
  kRun,
  kRunBeside,
  kReport,
  kSolved,
  kDeadlines,
  kGrace
};

struct Step {
  Move move = Move::kStart;
  int run = 0;
  int rank = 0;
  Arrival arrival = Arrival::kInOrder;
  int stream = -1;          // kUp, kOldEnds
  const char* vote = "";    // how the vote that this completes came out
  int crashed_before = -1;  // the daemon crashes before this effect; -1: it does not
  const char* loss = "";    // fate of its store then
  // Line in the log of a rank, before any renaming.
  struct Log {
    int run = 0;
    int rank = 0;
    HistoryRecord record;
  };
  std::vector<Log> log;
};

// A successor: the step, the state before its ranks are sorted, and where each rank went.
struct Successor {
  Step step;
  World world;
  std::array<int, kRuns> permutation{};  // in kAllPermutations
  std::string violation;                 // empty when none
};

// threads: not safe.
class Model {
 public:
  Model(Bounds bounds, Mutant mutant);

  World Start();
  // Calls `visit` for every successor, in an order that depends on `world` only. `world` is one
  // that Start or a successor gave.
  using Visit = std::function<void(Successor)>;
  void Expand(const World& world, const Visit& visit);
  // The same with every rank told apart: its successors are in no order, and the lowest connected
  // rank is asked where Expand asks each.
  void ExpandToldApart(const World& world, const Visit& visit);
  // Returns the state that Expand keeps among states that differ only in the names of ranks.
  World Canonical(const World& world);

  // Returns what is wrong in this state; empty if nothing is.
  std::string Check(const World& world) const;
  // No process has anything left to do: the daemon is IDLE or in QUARANTINE and every rank idles or
  // ended.
  bool IsSettled(const World& world) const;
  // Nothing is under way, every live rank is connected, and no vote is open.
  bool IsStill(const World& world) const;
  bool IsQuarantined(const World& world) const;

  std::string Describe(const World& before, const Step& step) const;
  std::string Describe(const World& world) const;

  const CoreTable& cores() const { return cores_; }
  const RankTable& ranks() const { return ranks_; }
  size_t num_stores() const { return stores_.size(); }

  bool check_symmetry = false;  // checks every message to the core: five times the work

 private:
  struct Expansion;  // one call of Expand

  uint32_t Keep(const Stored& stored);
  void Sort(Successor& successor);
  // The lowest of the cores that `orders` make of this one, and which of them made it.
  struct Lowest {
    uint32_t core = 0;
    std::array<int, kRuns> orders{};
  };
  const Lowest& LowestOf(uint32_t core, const std::array<unsigned, kRuns>& orders);
  bool Exists(const World& world, int run) const;
  bool HasEnded(const World& world, int run) const;
  // The one before the newest, which no process waits for any more.
  bool IsOlder(const World& world, int run) const;
  bool IsStill(const Cell& cell, bool is_older) const;

  const Bounds bounds_;
  const Mutant mutant_;
  Messages messages_;
  CoreTable cores_;
  RankTable ranks_;
  Interned<Stored> stores_;
  absl::flat_hash_map<uint64_t, Lowest> lowest_;
};

}  // namespace eplb::explorer
