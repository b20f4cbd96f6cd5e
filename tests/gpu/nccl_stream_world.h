// The nccl path, and the hybrid one, over a stand-in for libnccl whose groups are operations of the
// stand-in's streams: ranks are threads of device 0.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "tests/client/rows/paths/hybrid_world.h"
#include "tests/client/rows/paths/nccl_world.h"
#include "tests/gpu/device_queue.h"
#include "tests/support/fake_nccl/fake_nccl.h"

namespace eplb {

// The rules that were broken since it was asked last.
inline std::string FakeNcclViolations() {
  return ::eplb::OfFakeNccl<decltype(fakeNcclTakeViolations)>("fakeNcclTakeViolations")();
}

// A note, e.g. that memory is not registered, fails the test.
inline Transports MakeNcclStreamWorld(int32_t world_size, int64_t staging_bytes,
                                      int64_t piece_bytes) {
  return MakeNcclWorld({.world_size = world_size,
                        .staging_bytes = staging_bytes,
                        .piece_bytes = piece_bytes,
                        .device = 0,
                        .make_queue = &MakeDeviceQueue,
                        .on_note = [](std::string_view line) { ADD_FAILURE() << line; }});
}
inline Transports MakeSmallPieceStreamWorld(int32_t world_size, int64_t staging_bytes) {
  return MakeNcclStreamWorld(world_size, staging_bytes, 65'536);
}
inline Transports MakeLargePieceStreamWorld(int32_t world_size, int64_t staging_bytes) {
  return MakeNcclStreamWorld(world_size, staging_bytes, 1 << 20);
}

template <HostOf kHostOf>
Transports MakeHybridStreamWorld(int32_t world_size, int64_t staging_bytes) {
  return MakeHybridWorldOver({.world_size = world_size,
                              .staging_bytes = staging_bytes,
                              .host_of = kHostOf,
                              .piece_bytes = 65'536,
                              .device = 0,
                              .make_queue = &MakeDeviceQueue});
}

}  // namespace eplb
