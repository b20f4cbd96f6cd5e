// The arrays behind PlacementView: the same addresses for the life of the client.
#ifndef EPLB_CLIENT_PLACEMENT_TABLES_H_
#define EPLB_CLIENT_PLACEMENT_TABLES_H_

#include <cstdint>
#include <vector>

#include "client/client.h"
#include "client/session/member.h"

namespace eplb {

// Memory: L * (S + E * (S - E + 2)) int32. Threads: the training thread.
class PlacementTables {
 public:
  PlacementTables(const RunningPlacement& running, GpuId gpu);
  PlacementTables(const PlacementTables&) = delete;
  PlacementTables& operator=(const PlacementTables&) = delete;

  // Writes another placement of the same shape into the arrays.
  void Update(const RunningPlacement& running);
  const PlacementView& view() const { return view_; }

 private:
  std::vector<int32_t> physical_to_logical_;  // [L, S]
  std::vector<int32_t> replica_count_;        // [L, E]
  std::vector<int32_t> logical_to_physical_;  // [L, E, S - E + 1], -1 padded
  PlacementView view_;
};

}  // namespace eplb

#endif  // EPLB_CLIENT_PLACEMENT_TABLES_H_
