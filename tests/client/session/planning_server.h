// An in-process daemon that answers an engine's questions as a test sets it up, over real gRPC.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include "eplb/v1/planning.grpc.pb.h"

namespace eplb {

class PlanningServer final : public v1::Planning::Service {
 public:
  // Answers a question, or waits.
  using Answer = std::function<grpc::Status(grpc::ServerContext*, v1::PlanResponse*)>;

  explicit PlanningServer(Answer answer, int port = 0) : answer_(std::move(answer)), port_(port) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("127.0.0.1:", port), grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~PlanningServer() override { server_->Shutdown(std::chrono::system_clock::now()); }

  std::string endpoint() const { return absl::StrCat("127.0.0.1:", port_); }
  std::vector<v1::PlanRequest> asked() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return asked_;
  }
  std::vector<v1::SettleRequest> settled() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return settled_;
  }

  grpc::Status Plan(grpc::ServerContext* context, const v1::PlanRequest* request,
                    v1::PlanResponse* response) override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      asked_.push_back(*request);
    }
    return answer_(context, response);
  }
  grpc::Status Settle(grpc::ServerContext* /*context*/, const v1::SettleRequest* request,
                      v1::SettleResponse* /*response*/) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    settled_.push_back(*request);
    return grpc::Status::OK;
  }

 private:
  const Answer answer_;
  mutable std::mutex mutex_;
  std::vector<v1::PlanRequest> asked_;
  std::vector<v1::SettleRequest> settled_;
  int port_;
  std::unique_ptr<grpc::Server> server_;
};

// Answers a placement of these slots, [L, S]; none: the current placement stays.
inline PlanningServer::Answer AnswerOf(std::vector<int32_t> slots, uint64_t version = 1) {
  return [slots = std::move(slots), version](grpc::ServerContext*, v1::PlanResponse* response) {
    response->set_physical_to_logical_map(slots.data(), slots.size() * sizeof(slots[0]));
    response->set_version(version);
    response->set_reason("a\nreason");
    return grpc::Status::OK;
  };
}

inline PlanningServer::Answer RefusalOf(grpc::StatusCode code, const std::string& message) {
  return [code, message](grpc::ServerContext*, v1::PlanResponse*) {
    return grpc::Status(code, message);
  };
}

// Answers nothing until the caller gives up.
inline PlanningServer::Answer NoAnswer() {
  return [](grpc::ServerContext* context, v1::PlanResponse*) {
    while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(5));
    return grpc::Status::CANCELLED;
  };
}

}  // namespace eplb
