// The web page of a replay: `eplbctl replay --html`.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

#include "client/cli/page_documents.h"
#include "placement/policies/registry.h"
#include "placement/replay/replay.h"

namespace eplb::cli {

// The options of a replay that the page shows.
struct ReplayPageOptions {
  std::string trace;  // the path
  NamedPolicy policy;
};

// Made while the trace is replayed, because the placements exist only then. Versions count the
// placements: 0 is the starting layout. A plan has the number of the window that it was
// decided before, a window its number in `replay -o json`. Nothing ran, so that no rank, pause or
// time of day is known. threads: a value, not safe.
class ReplayPage {
 public:
  // trace: what it refers to must outlive this.
  ReplayPage(const ReplayTrace& trace, const Topology& topology, const ReplayOptions& replay,
             ReplayPageOptions options);

  // A ReplayObserver. errors: as Evaluate and PlanMigration.
  absl::Status Ran(int64_t window, const ReplayRow& row, const Switching& placement);

  // Documents for HtmlReport, after the last window. result: of this replay.
  PageJson Finish(const ReplayResult& result);

 private:
  absl::Status AddWindow(int64_t t, const ReplayRow& row, const Placement& placement);
  absl::Status AddPlan(int64_t t, const ReplayRow& row, const Placement& placement);
  void NoteSettled(int64_t t, const ReplayRow& row);
  void SetJob(const ReplayResult& result);

  const ReplayTrace trace_;
  const ReplayOptions replay_;
  const ReplayPageOptions options_;
  const Placement unmoved_;
  PageDocuments documents_;
  Placement newest_;  // newest placement that was decided on, and its version
  int64_t version_ = 0;
  int64_t settled_ = 0;                // newest version that a whole window ran under
  int64_t settles_at_ = 0;             // first step that runs under `version_` alone
  std::optional<size_t> unseen_ = {};  // plan whose first whole window has not passed
  double peaks_without_eplb_ = 0;      // sums over windows
  double peaks_ = 0;
};

}  // namespace eplb::cli
