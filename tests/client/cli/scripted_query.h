// A daemon's Query and Admin services in this process, whose answers a test sets.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include <grpcpp/server.h>

#include "client/cli/query_client.h"
#include "client/cli/terminal.h"
#include "placement/placement.h"

#include "eplb/v1/admin.grpc.pb.h"
#include "eplb/v1/query.grpc.pb.h"

namespace eplb::cli {

inline constexpr Terminal kPlain{.width = 80};
inline constexpr char kJob[] = "train";

// Two layers of four experts in six slots on three GPUs, the static layout.
Placement ExampleBefore();
// With experts 0 and 5 % 4 of layer 0 exchanged between GPUs.
Placement ExampleAfter();
// Two layers of 64 experts on as many GPUs; GPU g holds expert (g + shift) % 64.
Placement ShiftedPlacement(int32_t shift);
v1::JobStatus ExampleJob();
// IDLE, its one rank connected, nothing to complain of.
v1::JobStatus HealthyJob();
// The daemon has restarted, and no rank has registered since.
v1::JobStatus AbsentJob();

// True when no line is wider than `width`.
bool FitsInto(const std::string& text, size_t width);
// How often `word` stands in `text`.
size_t CountOf(const std::string& word, const std::string& text);

// Version 3 is ExampleAfter and current, version 1 is ExampleBefore. Threads: gRPC's; the test
// changes answers between questions only.
class ScriptedQuery final : public v1::Query::Service, public v1::Admin::Service {
 public:
  ScriptedQuery();
  ~ScriptedQuery() override;

  std::string endpoint() const { return "127.0.0.1:" + std::to_string(port_); }
  QueryOptions Options(Format format = Format::kTable) const {
    return {.endpoint = endpoint(), .timeout = "5s", .format = format};
  }

  // ---- what is answered ----
  v1::GetStatusResponse status;  // its jobs are those of GetJob, too
  std::map<int64_t, Placement> placements = {{1, ExampleBefore()}, {3, ExampleAfter()}};
  std::vector<v1::Plan> plans;       // newest first
  std::vector<v1::JobEvent> events;  // newest first
  std::vector<v1::Window> windows;   // oldest first
  std::optional<v1::GetLoadResponse> load;
  v1::AdminResponse admin_answer;
  std::vector<v1::Plan> decides;  // plans that a rebalance adds to `plans`, newest first
  grpc::Status failure;           // answer of every call, when not OK
  bool previews = true;           // false: a daemon of before Preview
  int stale_answers = 0;  // so many changes are refused because another version is current by then
  int32_t answers = std::numeric_limits<int32_t>::max();  // then a call waits for its deadline
  bool whole = true;                                      // false: a placement lacks its last layer

  // ---- what was asked ----
  std::string last_admin_request;  // DebugString

 private:
  grpc::Status Begin(grpc::ServerContext* context);
  template <class Request>
  grpc::Status Change(grpc::ServerContext* context, const Request& request,
                      v1::AdminResponse* response);

  grpc::Status GetStatus(grpc::ServerContext* context, const v1::GetStatusRequest* request,
                         v1::GetStatusResponse* response) override;
  grpc::Status GetJob(grpc::ServerContext* context, const v1::GetJobRequest* request,
                      v1::JobStatus* response) override;
  grpc::Status GetPlacement(grpc::ServerContext* context, const v1::GetPlacementRequest* request,
                            v1::GetPlacementResponse* response) override;
  grpc::Status ListPlans(grpc::ServerContext* context, const v1::ListPlansRequest* request,
                         v1::ListPlansResponse* response) override;
  grpc::Status GetPlan(grpc::ServerContext* context, const v1::GetPlanRequest* request,
                       v1::Plan* response) override;
  grpc::Status ListEvents(grpc::ServerContext* context, const v1::ListEventsRequest* request,
                          v1::ListEventsResponse* response) override;
  grpc::Status ListWindows(grpc::ServerContext* context, const v1::ListWindowsRequest* request,
                           v1::ListWindowsResponse* response) override;
  grpc::Status GetLoad(grpc::ServerContext* context, const v1::GetLoadRequest* request,
                       v1::GetLoadResponse* response) override;
  grpc::Status Rebalance(grpc::ServerContext* context, const v1::RebalanceRequest* request,
                         v1::AdminResponse* response) override;
  grpc::Status Pause(grpc::ServerContext* context, const v1::PauseRequest* request,
                     v1::AdminResponse* response) override;
  grpc::Status Resume(grpc::ServerContext* context, const v1::ResumeRequest* request,
                      v1::AdminResponse* response) override;
  grpc::Status Rollback(grpc::ServerContext* context, const v1::RollbackRequest* request,
                        v1::AdminResponse* response) override;
  grpc::Status Forget(grpc::ServerContext* context, const v1::ForgetRequest* request,
                      v1::AdminResponse* response) override;
  grpc::Status Preview(grpc::ServerContext* context, const v1::PreviewRequest* request,
                       v1::AdminResponse* response) override;
  grpc::Status SetPolicy(grpc::ServerContext* context, const v1::SetPolicyRequest* request,
                         v1::AdminResponse* response) override;

  int port_ = 0;
  absl::Notification never_;
  std::unique_ptr<grpc::Server> server_;
};

// The text of a command that must succeed.
inline std::string TextOf(const Output& output) {
  EXPECT_EQ(output.exit_code, kOk) << output.message;
  return output.out;
}

// A text that has each of the words.
template <class... Word>
auto Says(const Word&... words) {
  return ::testing::AllOf(::testing::HasSubstr(words)...);
}

// A daemon with ExampleJob alone.
class ExampleJobTest : public ::testing::Test {
 protected:
  ExampleJobTest() { *daemon_.status.add_jobs() = ExampleJob(); }
  ScriptedQuery daemon_;
};

}  // namespace eplb::cli
