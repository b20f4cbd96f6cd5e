// A placement as the store keeps it: bytes that are accepted are the bytes that would be written.

#include "server/store/placement_bytes.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes = eplb::fuzz::AsText(data, size);
  const absl::StatusOr<eplb::Placement> placement = eplb::PlacementFromBytes(bytes);
  eplb::fuzz::RequireOneLine(placement.status());
  if (placement.ok()) {
    eplb::fuzz::Require(eplb::PlacementToBytes(*placement) == bytes,
                        "two rows stand for one placement");
  }
  return 0;
}
