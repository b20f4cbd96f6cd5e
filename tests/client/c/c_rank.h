// A rank of a small job that uses the client by its C ABI alone, with real expert memory.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/c/eplb.h"
#include "client/rows/control/control_channel.h"

namespace eplb {

// An eplb_all_gather whose user is a pointer to an AllGather.
int32_t RunAllGather(void* all_gather, const void* bytes, size_t num_bytes, eplb_answers* answers);

// The call that gave this code is refused with this message.
inline void ExpectInvalid(int32_t code, const char* message) {
  EXPECT_EQ(code, EPLB_INVALID_ARGUMENT);
  EXPECT_STREQ(eplb_last_message(), message);
}

// Options of a rank in the job of SmallTopology(): 3 layers, 4 experts on 4 slots of 2 GPUs.
eplb_client_options SmallOptions(int32_t rank, int32_t world_size);

class CRank {
 public:
  CRank(int32_t rank, int32_t world_size, AllGather all_gather);
  ~CRank() { eplb_client_destroy(client_); }
  CRank(const CRank&) = delete;
  CRank& operator=(const CRank&) = delete;

  eplb_client* client() { return client_; }
  int32_t rank() const { return rank_; }
  std::string message() const { return eplb_client_message(client_); }
  eplb_client_options options;  // to be changed before Connect

  int32_t Connect();
  // Rows for the slots of this rank, filled by the experts that they hold.
  std::vector<eplb_tensor> MakeTensors();
  int32_t Register(const std::vector<eplb_tensor>& tensors);
  int32_t Record();
  int32_t Step(int64_t step, eplb_boundary* boundary = nullptr);
  // Steps from `first` until a boundary for which `until` is true, at most 30 s. Returns that
  // boundary's step, or -1 after a call that failed.
  int64_t StepUntil(int64_t first, const std::function<bool(const eplb_boundary&)>& until);
  // Slots that do not hold the bytes of the expert that the placement says.
  int WrongSlots();

 private:
  eplb_placement Placement();
  std::byte Expected(int32_t layer, int32_t local_slot);

  const int32_t rank_;
  AllGather all_gather_;
  eplb_client* client_ = nullptr;
  std::vector<std::string> names_;
  std::vector<std::vector<std::byte>> memory_;  // [layers][slots * row bytes]
};

inline constexpr int32_t kSmallLayers = 3;
inline constexpr int32_t kSmallExperts = 4;
inline constexpr int64_t kSmallRowBytes = 96;

// A job of threads. Ranks that `start` connects and registers, unless a test wants it otherwise.
class CJob {
 public:
  explicit CJob(int32_t world_size);
  CRank& rank(int32_t rank) { return *ranks_[static_cast<size_t>(rank)]; }
  // Runs `body` on every rank's thread.
  void Run(const std::function<void(CRank&)>& body);
  // Connects and registers every rank. The first code that is not OK.
  int32_t Start();

 private:
  std::vector<std::unique_ptr<CRank>> ranks_;
};

}  // namespace eplb
