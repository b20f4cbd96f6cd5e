#include "client/session/daemon_exchange.h"

#include <memory>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"

#include "client/session/channel.h"
#include "placement/status_macros.h"
#include "proto/wire/status.h"

#include "eplb/v1/session.grpc.pb.h"

namespace eplb {
namespace {

// The daemon answers at the deadline it sees, naming who did not come; this much later the rank
// stops waiting for that answer.
constexpr absl::Duration kAnswerGrace = absl::Seconds(2);

class DaemonExchange {
 public:
  DaemonExchange(std::string endpoint, wire::TlsFiles tls, v1::ExchangeRequest request,
                 absl::Duration timeout)
      : endpoint_(std::move(endpoint)),
        tls_(std::move(tls)),
        request_(std::move(request)),
        timeout_(timeout) {}

  absl::StatusOr<std::vector<std::string>> Run(std::string_view bytes) {
    if (stub_ == nullptr) {
      EPLB_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel,
                            MakeChannel(endpoint_, tls_));
      stub_ = v1::Balancer::NewStub(channel);
    }
    const std::string key = absl::StrCat(next_key_++);
    request_.set_key(key);
    request_.set_blob(bytes.data(), bytes.size());
    v1::ExchangeResponse response;
    const absl::Status status =
        CallDaemon(timeout_, timeout_ + kAnswerGrace, [&](grpc::ClientContext* context) {
          return stub_->Exchange(context, request_, &response);
        });
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat("exchange ", key, " through eplbd at ",
                                                      endpoint_, ": ", status.message()));
    }
    if (response.blobs_size() != static_cast<int>(request_.world_size())) {
      return absl::InternalError(absl::StrCat("exchange ", key, ": ", response.blobs_size(),
                                              " answers, expected ", request_.world_size()));
    }
    return std::vector<std::string>(response.blobs().begin(), response.blobs().end());
  }

 private:
  std::string endpoint_;
  wire::TlsFiles tls_;
  v1::ExchangeRequest request_;
  absl::Duration timeout_;
  std::unique_ptr<v1::Balancer::Stub> stub_;  // from the first exchange on
  int64_t next_key_ = 0;
};

}  // namespace

DaemonExchangeFunction MakeExchangeThroughDaemon(std::string endpoint, std::string job,
                                                 int32_t rank, int32_t world_size,
                                                 absl::Duration timeout, wire::TlsFiles tls) {
  v1::ExchangeRequest request;
  request.set_job(std::move(job));
  request.set_rank(static_cast<uint32_t>(rank));
  request.set_world_size(static_cast<uint32_t>(world_size));
  std::random_device device;
  request.set_nonce(uint64_t{device()} << 32 | device());
  auto exchange = std::make_shared<DaemonExchange>(std::move(endpoint), std::move(tls),
                                                   std::move(request), timeout);
  return [exchange](std::string_view bytes) { return exchange->Run(bytes); };
}

}  // namespace eplb
