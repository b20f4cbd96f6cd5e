// Reference for everything that a daemon shows as measured: the ranks' own steps.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "placement/load.h"
#include "placement/placement.h"
#include "server/core/core.h"
#include "tests/simulation/context.h"

namespace eplb::simulation {

// Counts and placements come from the ranks' training threads, step by step; no figure of the
// library or of the daemon is used. Every figure must be right to kTolerance.
class Truth {
 public:
  static constexpr double kTolerance = 1e-9;
  using LoadOf = std::function<LoadMatrix(int rank, int64_t step)>;

  explicit Truth(Context* context) : context_(*context) {}

  // ---- ranks ----
  void AddJob(const std::string& job, int world_size, const Topology& topology, LoadOf load);
  // A rank runs this placement from now on.
  void Runs(const std::string& job, const std::string& run_id, int64_t version,
            std::shared_ptr<const Placement> placement);
  // A rank finished a step under this version.
  void Ran(const std::string& job, const std::string& run_id, int rank, int64_t step,
           int64_t version);

  // ---- daemons ----
  // Compares all that the core shows of its jobs now. daemon: names this process of it.
  void Check(const std::string& daemon, const core::Core& core, absl::Time now);
  void CheckPlan(const std::string& daemon, const std::string& job, const v1::Plan& plan);

 private:
  struct Run {
    std::map<int64_t, std::shared_ptr<const Placement>> placements;  // by version
    std::vector<std::map<int64_t, int64_t>> versions;                // [rank], by step
  };
  struct Job {
    int world_size = 0;
    std::optional<Topology> topology;
    LoadOf load;
    std::map<std::string, Run> runs;
  };
  // Steps of a complete window.
  struct Window {
    RealMatrix gpu_loads;  // [L, G]
    RealMatrix static_loads;
    RealMatrix loads_without_eplb;
    std::set<int64_t> versions;
  };
  using Steps = std::pair<int64_t, int64_t>;
  // Figures of a job that a daemon's process has shown.
  struct Shown {
    std::string run_id;
    Steps newest = {-1, -1};
    std::map<Steps, Window> windows;  // complete ones
    // Windows of the run before. A decision may be made on them and replace the run.
    std::map<Steps, Window> windows_before = {};
  };

  void CheckWindow(Shown& shown, const v1::JobStatus& view, const core::WindowView& window);
  void CheckView(const Shown& shown, const v1::JobStatus& view);
  void CheckBefore(const Shown& shown, const std::string& job, const v1::Plan& plan);
  void CheckSeen(const Shown& shown, const std::string& job, const v1::Plan& plan);
  // The window with exactly these counts, of some of the ranks.
  std::optional<Window> Find(const Job& job, const v1::JobStatus& view,
                             const core::WindowView& window) const;
  Window Sum(const Job& job, const Run& run, Steps steps, unsigned ranks) const;

  Context& context_;
  std::map<std::string, Job> jobs_;
  std::map<std::pair<std::string, std::string>, Shown> shown_;  // by daemon and job
  // Job, plan and figure that were checked when they first were shown: a plan outlives the run
  // and the process that it is of.
  std::set<std::tuple<std::string, uint64_t, double>> checked_before_;
  std::set<std::tuple<std::string, uint64_t, double>> checked_seen_;
};

}  // namespace eplb::simulation
