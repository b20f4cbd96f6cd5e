// A small job whose ranks are threads, each with a client and real expert memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "client/client.h"
#include "client/rows/control/control_channel.h"
#include "client/rows/transport.h"
#include "placement/rank_grid.h"

namespace eplb {

// One rank: its client and its experts' bytes. A byte of an expert depends on layer, expert and
// tensor, so that a wrong or torn row is seen.
class TestRank {
 public:
  TestRank(std::unique_ptr<Client> client, const ClientOptions& options);

  Client& client() { return *client_; }
  // Returns the tensors that the rank registers unless a test changes them: a weight "layers.L.w"
  // and a state "layers.L.m" of each layer that it holds.
  std::vector<ExpertTensorView> Tensors();
  void Fill();
  // A digest of a slot's bytes.
  uint64_t BytesOf(int32_t layer, int32_t local_slot) const;
  // Slots that do not hold the bytes of the expert that row_placement() says.
  int WrongSlots() const;
  // One step with one token per expert and layer that it holds.
  absl::StatusOr<BoundaryResult> Step(int64_t step);
  // Steps from `first` until a boundary for which `until` is true, at most 30 s.
  // Returns that boundary's step, or the error.
  absl::StatusOr<int64_t> StepUntil(int64_t first,
                                    const std::function<bool(const BoundaryResult&)>& until);
  void Stop() { client_.reset(); }
  int32_t rank() const { return rank_; }
  // Layers are dealt to pipeline stages in turn.
  bool Holds(int32_t layer) const {
    return layer % grid_.pipeline_parallel_size() == grid_.PipelineStageOf(RankId{rank_});
  }

 private:
  std::byte Expected(int32_t layer, int32_t local_slot, size_t tensor) const;

  std::unique_ptr<Client> client_;
  int32_t rank_;
  RankGrid grid_;
  std::vector<std::vector<std::byte>> memory_;  // [layers * tensors][slots * bytes]
};

// Changes that a test can make to a rank before it connects.
using OptionsHook = std::function<void(ClientOptions&)>;
using TensorsHook = std::function<void(TestRank&, std::vector<ExpertTensorView>&)>;
using ControlHook =
    std::function<std::unique_ptr<ControlChannel>(int32_t rank, std::unique_ptr<ControlChannel>)>;
using TransportHook =
    std::function<std::unique_ptr<Transport>(int32_t rank, std::unique_ptr<Transport>)>;

inline constexpr int32_t kTestRanks = 4;  // 2 GPUs, 2 EP groups
ClientOptions TestOptions(int32_t rank, const std::string& endpoint);

struct TestJobHooks {
  OptionsHook options = nullptr;
  TensorsHook tensors = nullptr;
  ControlHook control = nullptr;
  TransportHook transport = nullptr;
};

// Connects kTestRanks ranks and registers their experts.
class TestJob {
 public:
  explicit TestJob(const std::string& endpoint, const TestJobHooks& hooks = {});

  TestRank& rank(int32_t rank) { return *ranks_[static_cast<size_t>(rank)]; }
  // The first error of any rank's start.
  const absl::Status& started() const { return started_; }
  // Runs `body` on every rank's thread.
  void Run(const std::function<void(int32_t rank, TestRank&)>& body);

 private:
  std::vector<std::unique_ptr<TestRank>> ranks_;
  absl::Status started_;
};

// A job whose ranks all start: an error of one ends the test.
class StartedJob : public TestJob {
 public:
  explicit StartedJob(const std::string& endpoint, const TestJobHooks& hooks = {})
      : TestJob(endpoint, hooks) {
    if (!started().ok()) throw std::runtime_error(started().ToString());
  }
};

}  // namespace eplb
