// The web page of a replay: `eplbctl replay --html`.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

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
  absl::Status Ran(const ReplayedWindow& window);

  // Documents for HtmlReport, after the last window. result: of this replay. errors: as
  // PlanMigration.
  absl::StatusOr<PageJson> Finish(const ReplayResult& result);

 private:
  int64_t version() const { return std::ssize(decided_); }
  void FindVersions(std::span<const ReplayRow> rows);
  absl::Status AddWindow(const ReplayedWindow& ran);
  absl::Status AddTraffic(std::span<const ReplayRow> rows, const Placement& reached);
  PageJson PlanOf(int64_t t, const ReplayRow& row, int64_t version) const;
  void AddPlans(std::span<const ReplayRow> rows);
  void SetJob(const ReplayResult& result);

  const ReplayTrace trace_;
  const ReplayOptions replay_;
  const ReplayPageOptions options_;
  const Placement unmoved_;
  PageDocuments documents_;
  Placement left_;                  // the placement that the newest version changed
  Placement newest_;                // the newest version
  std::vector<size_t> decided_;     // rows of versions 1, 2, ...
  std::vector<int64_t> ran_ = {0};  // versions that the newest window ran under, oldest first
  double peaks_without_eplb_ = 0;   // sums over windows
  double peaks_ = 0;
};

}  // namespace eplb::cli
