// The documents that the web page asks the daemon for, made of what a run or a trace left: keys and
// paths are those of /api/v1 (server/http/api.h), and what is not known is null or empty.
// HtmlReport makes them the page of a file.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include <google/protobuf/message.h>

#include "placement/load.h"
#include "placement/placement.h"
#include "placement/topology.h"

#include "eplb/v1/query.pb.h"
#include <nlohmann/json.hpp>
#include <nlohmann/json_fwd.hpp>

namespace eplb::cli {

using PageJson = nlohmann::ordered_json;

// A page holds this much; warnings on it name what was left out.
inline constexpr int64_t kMaxPageWindows = 4096;          // the newest
inline constexpr int64_t kMaxPageWindowsWithLoads = 120;  // spread evenly over those
inline constexpr int64_t kMaxPageNumbers = 2'000'000;     // in loads and placements, about 10 MB
inline constexpr size_t kMaxPagePlans = 1000;   // the newest that moved something, then others
inline constexpr size_t kMaxPageEvents = 1000;  // the newest

// Tokens of a window: [L, E], and [L, G] in equal shares under its placements and the static
// layout.
struct PageLoads {
  const Load& load;
  const RealMatrix& on_gpus;
  const RealMatrix& on_gpus_static;
};

// The keys of a message of which only what is set is known: other numbers and booleans are null.
PageJson KnownJson(const google::protobuf::Message& message);

// One job of one page. threads: a value, not safe.
class PageDocuments {
 public:
  // kind: "run" or "trace". job: its name, of any bytes. num_windows: that will be added.
  PageDocuments(std::string_view kind, std::string_view job, const Topology& topology,
                int64_t num_windows);

  // True if the page has room for window `index`, counted from 0, or for its loads.
  bool KeepsWindow(int64_t index) const;
  bool KeepsLoads(int64_t index) const;

  // By rising `window`.
  void AddWindow(const v1::Window& window);
  void AddLoads(const v1::Window& window, const PageLoads& loads);
  // Each version once; further calls change nothing.
  void AddPlacement(int64_t version, const Placement& placement);
  // Adds the transfers that lead from one placement to the other. errors: as PlanMigration.
  absl::Status AddTraffic(const v1::Plan& plan, const Placement& before, const Placement& after);
  // Oldest first. plan: KnownJson of a v1::Plan, and further keys. Returns its place.
  size_t AddPlan(PageJson plan);
  PageJson& plan(size_t place) { return plans_[place]; }
  void AddEvent(const v1::JobEvent& event) { events_.push_back(KnownJson(event)); }
  void AddWarning(std::string text) { warnings_.push_back(std::move(text)); }
  // This panel is left out: the source does not know anything of it.
  void LeaveOut(std::string_view panel) { left_out_.emplace_back(panel); }

  const std::string& job() const { return job_; }
  // Has the job's name and shape; other fields are not known until they are set.
  v1::JobStatus& status() { return status_; }
  // Keys of the page alone, and values that v1::JobStatus cannot have.
  PageJson& further_status() { return further_status_; }

  // made: of the line on the page, "by eplbctl 0.1.0 from build/demo".
  PageJson Finish(std::string_view made);

 private:
  std::string PathOf(std::string_view what) const;
  void BoundPlans();
  void BoundEvents();

  std::string kind_;
  std::string job_;
  int64_t num_windows_;
  int64_t first_window_;  // index of the oldest that is kept
  int64_t num_with_loads_;
  v1::JobStatus status_;
  PageJson further_status_ = PageJson::object();
  std::map<std::string, PageJson> paths_;
  PageJson windows_ = PageJson::array();
  std::vector<PageJson> plans_;
  std::vector<PageJson> events_;
  std::vector<std::string> warnings_;
  std::vector<std::string> left_out_;
};

// Returns the daemon's web page as one file, with the documents that it shows.
// documents: as PageDocuments gives them; bytes in them that are not UTF-8 are replaced.
// returns: HTML that asks for no other file. Its Content-Security-Policy allows the page's scripts
//   and styles by their SHA-256 and nothing else, so that no text of a run can become code.
// errors: Internal, naming a file of the page that would end its own element.
// cost: O(bytes). threads: safe, no state.
absl::StatusOr<std::string> HtmlReport(const nlohmann::ordered_json& documents);

}  // namespace eplb::cli
