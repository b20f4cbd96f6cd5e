// A communicator of the fake: a thread of its own connects the ranks and moves the bytes of one
// group after the other. Where the program runs on the stand-in for CUDA, a group is an operation
// of its stream: launched some polls after it was asked for, begun when the stream comes to it, and
// over when both ends are.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/fake_nccl/faults.h"
#include "tests/support/fake_nccl/link.h"
#include "tests/support/fake_nccl/mesh.h"
#include "tests/support/fake_nccl/plans.h"

namespace eplb::fake_nccl {

struct CommunicatorOptions {
  MeshAddress address;
  int32_t channels = 32;
  std::vector<Fault> faults;
  bool rules = true;  // at most one send and one receive in a group
  // Device of streams and memory; absent: groups run at once, on host memory.
  std::optional<int> device;
};

// A group that was asked for. On a stream it outlives its communicator, whose end ends it.
struct Launch {
  std::vector<Operation> operations;
  cudaStream_t stream = nullptr;
  std::atomic<bool> begun = false;
  std::atomic<bool> over = false;
};

// Groups that wait for the communicator's thread.
struct Intake {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Launch>> groups;  // guarded by mutex
  std::atomic<bool> stopped = false;           // set under mutex
};

// Threads: all methods from any thread; Submit from one.
class Communicator {
 public:
  explicit Communicator(CommunicatorOptions options);
  // Ends the thread: nothing is read or written afterwards.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // ncclInProgress, or why the group is refused. On a device what it receives into holds poison
  // from here on.
  Outcome Submit(std::vector<Operation> operations, cudaStream_t stream);
  // ncclInProgress until the ranks are connected, and until the last group has been launched; in
  // host memory until its bytes have moved. On a device each question brings the launch nearer.
  Outcome Poll();
  Outcome state() const;
  // Outcome of a call other than a group by the faults, success without a fault of this kind;
  // and how long an abort takes.
  Outcome OutcomeOf(FaultKind kind) const;
  std::chrono::milliseconds AbortTime() const;
  const MeshAddress& address() const { return options_.address; }

 private:
  void Run();
  void SetState(Outcome outcome);
  // Empty when all of it is the device's; then with its views in place of its addresses.
  std::string UseDevice(std::vector<Operation>& operations, cudaStream_t stream) const;
  void PutOnStream(const std::shared_ptr<Launch>& launch);
  void MeetInitFaults();
  // The next group; null at the end.
  std::shared_ptr<Launch> NextGroup();
  Outcome RunGroup(const std::vector<Operation>& operations);
  // Outcome in place of the group, absent if it runs; *corrupt if it runs with a wrong bit.
  std::optional<Outcome> MeetFaults(bool* corrupt);
  Outcome RunPlan(const std::vector<Operation>& operations, const std::vector<size_t>& plan);
  // Until something can be done, or the end.
  void Wait(int timeout_ms, std::vector<Link*>* links);
  bool stopped() const;

  const CommunicatorOptions options_;
  Descriptor stop_reader_;
  Descriptor stop_writer_;
  mutable std::mutex mutex_;
  Outcome state_{ncclInProgress, ""};  // guarded by mutex_
  std::shared_ptr<Launch> submitted_;  // guarded by mutex_; not launched yet
  uint32_t polls_left_ = 0;            // guarded by mutex_; till it is
  std::mt19937 random_;                // draws the polls
  const std::shared_ptr<Intake> intake_ = std::make_shared<Intake>();
  int64_t num_groups_ = 0;                    // the thread's
  std::vector<std::unique_ptr<Link>> links_;  // the thread's; null for the own rank
  std::thread thread_;
};

}  // namespace eplb::fake_nccl
