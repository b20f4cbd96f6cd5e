// Promises of daemons that no restart, lost store or older run may take back: which run owns a job,
// that an operator paused it, that it is in QUARANTINE.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "proto/wire/messages.h"
#include "tests/simulation/context.h"

namespace eplb::simulation {

// Runs are named by the launcher's count.
std::string RunName(int number);
int RunOf(const std::string& run_id);

// A promise is one of a store: it holds as long as a daemon runs on that store. When the store is
// lost or replaced, it holds again as soon as a rank that carries it was welcomed.
class Promises {
 public:
  // Returns true if every rank of the job's newest run carries a memory for which `holds` is true.
  using Holds = std::function<bool(const wire::JobMemory&)>;
  using RanksCarry = std::function<bool(const std::string& job, const Holds& holds)>;

  Promises(Context* context, RanksCarry ranks_carry)
      : context_(*context), ranks_carry_(std::move(ranks_carry)) {}

  // ---- a daemon, by its name, whose store holds it ----
  void Proposed(const std::string& daemon, const std::string& job, int run, int64_t version);
  void Paused(const std::string& daemon, const std::string& job);
  void Resumed(const std::string& daemon, const std::string& job);
  void Quarantined(const std::string& daemon, const std::string& job, int run);
  bool IsPaused(const std::string& daemon, const std::string& job) const;
  // A rank that carried this memory was welcomed.
  void Carried(const std::string& daemon, const std::string& job, const wire::JobMemory& memory);

  // A second daemon leads too: it numbers launches for itself, and none of the two knows the order
  // of all of them.
  void SecondDaemon(const std::string& job);
  // The daemon will start on another store.
  void StoreReplaced(const std::string& daemon);
  // The order of the job's launches was unclear once, see SecondDaemon and StoreReplaced.
  bool WasDisputed(const std::string& job) const { return ever_disputed_.contains(job); }
  // No older run of the job lives any more.
  void OlderEnded(const std::string& job);
  // No process is left that knows of the job.
  void Forgotten(const std::string& job);

 private:
  struct Promise {
    int owner = 0;                 // the newest run that got a proposal
    int64_t highest_proposed = 0;  // version
    bool paused = false;
    int quarantined = 0;         // the run; 0: none is
    bool paused_before = false;  // `paused` in the store that was lost
    int quarantined_before = 0;
  };

  Context& context_;
  const RanksCarry ranks_carry_;
  std::map<std::pair<std::string, std::string>, Promise> promises_;  // by daemon and job
  // Jobs of which an older run may be led: a store is new, or there are two daemons.
  std::set<std::string> disputed_;
  std::set<std::string> ever_disputed_;
};

}  // namespace eplb::simulation
