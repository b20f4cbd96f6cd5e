#include "tests/client/cli/scripted_query.h"

#include <algorithm>
#include <utility>

#include <grpcpp/server_builder.h>

#include "proto/wire/convert.h"

namespace eplb::cli {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(5);

Topology ExampleShape() {
  return *Topology::Make({.num_layers = 2, .num_experts = 4, .num_slots = 6, .num_gpus = 3});
}

template <class Records, class Out>
void CopyNewest(const Records& records, uint32_t limit, Out* out) {
  for (const auto& record : records) {
    if (limit > 0 && std::cmp_greater_equal(out->size(), limit)) return;
    *out->Add() = record;
  }
}

}  // namespace

Placement ExampleBefore() { return Placement::Static(ExampleShape()); }

Placement ExampleAfter() {
  IndexMatrix slots = ExampleBefore().physical_to_logical_map();  // 0 1 | 2 3 | 0 1
  std::swap(slots(0, 1), slots(0, 2));                            // 0 2 | 1 3 | 0 1
  return *Placement::FromSlots(ExampleShape(), slots);
}

Placement ShiftedPlacement(int32_t shift) {
  constexpr int32_t kExperts = 64;
  IndexMatrix slots(2, kExperts);
  for (int32_t slot = 0; slot < kExperts; ++slot) slots.col(slot) = (slot + shift) % kExperts;
  return *Placement::FromSlots(
      *Topology::Make(
          {.num_layers = 2, .num_experts = kExperts, .num_slots = kExperts, .num_gpus = kExperts}),
      slots);
}

v1::JobStatus ExampleJob() {
  v1::JobStatus job;
  job.set_job(kJob);
  job.set_run_id("a1");
  job.set_state(v1::JOB_STATE_PREPARING);
  job.set_state_seconds(12);
  job.set_waiting_for("ranks 3, 5 to be ready");
  job.mutable_shape()->set_num_layers(2);
  job.mutable_shape()->set_num_experts(4);
  job.set_world_size(8);
  job.set_connected_ranks(7);
  job.set_step(12345);
  job.set_version(3);
  const Digest digest = DigestOf(ExampleAfter());
  job.set_digest(digest.bytes.data(), digest.bytes.size());
  job.set_balancedness(0.75);
  job.set_measured_first_step(12200);
  job.set_measured_last_step(12249);
  job.set_balancedness_static(0.6125);
  job.set_balancedness_without_eplb(0.625);
  job.set_balancedness_predicted(0.9875);
  job.set_prediction_error(0.03);
  job.set_balancedness_seen(0.8125);
  v1::PolicySettings& policy = *job.mutable_policy();
  policy.set_name("incremental");
  policy.set_mode("apply");
  policy.set_every_steps(200);
  policy.set_min_gain(0.05);
  policy.set_horizon_steps(1000);
  policy.set_freeze_steps("0:60");
  policy.set_max_pause_seconds(0.2);
  policy.set_layers_per_chunk(4);
  job.set_last_reason(
      "moved 12 experts because the predicted sum of peak loads falls by 8.1 %, more than the 5 % "
      "that policy.min_gain asks for");
  v1::RankStatus& rank = *job.add_ranks();
  rank.set_rank(0);
  rank.set_connected(true);
  rank.set_running_version(3);
  return job;
}

v1::JobStatus AbsentJob() {
  v1::JobStatus job = ExampleJob();
  job.clear_world_size();
  job.clear_connected_ranks();
  job.clear_step();
  job.clear_ranks();
  job.clear_balancedness();
  job.clear_balancedness_without_eplb();
  job.set_state(v1::JOB_STATE_RECOVERING);
  job.set_waiting_for("the ranks to register");
  return job;
}

v1::JobStatus HealthyJob() {
  v1::JobStatus job = ExampleJob();
  job.set_state(v1::JOB_STATE_IDLE);
  job.set_state_seconds(3600);
  job.clear_waiting_for();
  job.set_world_size(1);
  job.set_connected_ranks(1);
  job.set_coverage(1);
  job.mutable_ranks(0)->set_library_version("0.1.0");
  return job;
}

bool FitsInto(const std::string& text, size_t width) {
  size_t start = 0;
  for (size_t end = 0; (end = text.find('\n', start)) != std::string::npos; start = end + 1) {
    if (end - start > width) return false;
  }
  return text.size() - start <= width;
}

size_t CountOf(const std::string& word, const std::string& text) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(word, at)) != std::string::npos; at += word.size()) ++count;
  return count;
}

ScriptedQuery::ScriptedQuery() {
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
  builder.RegisterService(static_cast<v1::Query::Service*>(this));
  builder.RegisterService(static_cast<v1::Admin::Service*>(this));
  server_ = builder.BuildAndStart();
  status.set_server_version("0.1.0");
  status.set_uptime_seconds(7500);
  status.set_ready(true);
}

ScriptedQuery::~ScriptedQuery() { server_->Shutdown(); }

grpc::Status ScriptedQuery::Begin(grpc::ServerContext* context) {
  if (answers > 0) {
    --answers;
    return failure;
  }
  // Ends when the client's deadline cancels the call.
  while (!context->IsCancelled()) never_.WaitForNotificationWithTimeout(kTick);
  return failure;
}

grpc::Status ScriptedQuery::GetStatus(grpc::ServerContext* context,
                                      const v1::GetStatusRequest* /*request*/,
                                      v1::GetStatusResponse* response) {
  *response = status;
  return Begin(context);
}

grpc::Status ScriptedQuery::GetJob(grpc::ServerContext* context, const v1::GetJobRequest* request,
                                   v1::JobStatus* response) {
  for (const v1::JobStatus& job : status.jobs()) {
    if (job.job() != request->job()) continue;
    *response = job;
    return Begin(context);
  }
  return {grpc::StatusCode::NOT_FOUND, "no job " + request->job()};
}

grpc::Status ScriptedQuery::GetPlacement(grpc::ServerContext* context,
                                         const v1::GetPlacementRequest* request,
                                         v1::GetPlacementResponse* response) {
  const auto is_asked = [request](const auto& job) { return job.job() == request->job(); };
  if (request->job() != kJob && std::ranges::none_of(status.jobs(), is_asked)) {
    return {grpc::StatusCode::NOT_FOUND, "no job " + request->job()};
  }
  const auto found = request->has_version()
                         ? placements.find(static_cast<int64_t>(request->version()))
                         : (placements.empty() ? placements.end() : std::prev(placements.end()));
  if (found == placements.end()) return {grpc::StatusCode::NOT_FOUND, "no such version is kept"};
  wire::ToProto(found->second, found->first, response->mutable_placement());
  if (!whole) response->mutable_placement()->mutable_layers()->RemoveLast();
  return Begin(context);
}

grpc::Status ScriptedQuery::ListPlans(grpc::ServerContext* context,
                                      const v1::ListPlansRequest* request,
                                      v1::ListPlansResponse* response) {
  CopyNewest(plans, request->limit(), response->mutable_plans());
  return Begin(context);
}

grpc::Status ScriptedQuery::GetPlan(grpc::ServerContext* context, const v1::GetPlanRequest* request,
                                    v1::Plan* response) {
  for (const v1::Plan& plan : plans) {
    if (plan.plan() != request->plan()) continue;
    *response = plan;
    return Begin(context);
  }
  return {grpc::StatusCode::NOT_FOUND, "no such decision is kept"};
}

grpc::Status ScriptedQuery::ListEvents(grpc::ServerContext* context,
                                       const v1::ListEventsRequest* request,
                                       v1::ListEventsResponse* response) {
  std::vector<v1::JobEvent> newer;
  std::copy_if(
      events.begin(), events.end(), std::back_inserter(newer),
      [request](const auto& event) { return event.sequence() > request->after_sequence(); });
  CopyNewest(newer, request->limit(), response->mutable_events());
  return Begin(context);
}

grpc::Status ScriptedQuery::ListWindows(grpc::ServerContext* context,
                                        const v1::ListWindowsRequest* /*request*/,
                                        v1::ListWindowsResponse* response) {
  response->mutable_windows()->Assign(windows.begin(), windows.end());
  return Begin(context);
}

grpc::Status ScriptedQuery::GetLoad(grpc::ServerContext* context,
                                    const v1::GetLoadRequest* /*request*/,
                                    v1::GetLoadResponse* response) {
  if (!load) return {grpc::StatusCode::NOT_FOUND, "no complete window yet"};
  *response = *load;
  return Begin(context);
}

template <class Request>
grpc::Status ScriptedQuery::Change(grpc::ServerContext* context, const Request& request,
                                   v1::AdminResponse* response) {
  last_admin_request = request.DebugString();
  *response = admin_answer;
  if (stale_answers > 0) {
    --stale_answers;
    return {grpc::StatusCode::ABORTED, "another version is in force"};
  }
  return Begin(context);
}

grpc::Status ScriptedQuery::Rebalance(grpc::ServerContext* context,
                                      const v1::RebalanceRequest* request,
                                      v1::AdminResponse* response) {
  plans.insert(plans.begin(), decides.begin(), decides.end());
  return Change(context, *request, response);
}

grpc::Status ScriptedQuery::Preview(grpc::ServerContext* context, const v1::PreviewRequest* request,
                                    v1::AdminResponse* response) {
  if (!previews) return {grpc::StatusCode::UNIMPLEMENTED, ""};
  if (request->has_rebalance()) plans.insert(plans.begin(), decides.begin(), decides.end());
  return Change(context, *request, response);
}
#define EPLB_SCRIPTED_CHANGE(Call)                                                                 \
  grpc::Status ScriptedQuery::Call(grpc::ServerContext* context, const v1::Call##Request* request, \
                                   v1::AdminResponse* response) {                                  \
    return Change(context, *request, response);                                                    \
  }
EPLB_SCRIPTED_CHANGE(Pause)
EPLB_SCRIPTED_CHANGE(Resume)
EPLB_SCRIPTED_CHANGE(Rollback)
EPLB_SCRIPTED_CHANGE(SetPolicy)
EPLB_SCRIPTED_CHANGE(Forget)
#undef EPLB_SCRIPTED_CHANGE

}  // namespace eplb::cli
