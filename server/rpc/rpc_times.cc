#include "server/rpc/rpc_times.h"

#include <set>
#include <string_view>

#include "absl/time/time.h"
#include <google/protobuf/descriptor.h>
#include <grpcpp/grpcpp.h>

#include "base/monotonic_clock.h"

#include "eplb/v1/admin.grpc.pb.h"
#include "eplb/v1/query.grpc.pb.h"
#include "eplb/v1/session.grpc.pb.h"

namespace eplb {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::Interceptor;
using grpc::experimental::InterceptorBatchMethods;
using grpc::experimental::ServerInterceptorFactoryInterface;
using grpc::experimental::ServerRpcInfo;

constexpr char kOther[] = "other";

// "/eplb.v1.Query/GetJob" and so on, with and without streams.
struct Methods {
  std::set<std::string, std::less<>> calls;
  std::set<std::string, std::less<>> streams = {
      "/grpc.health.v1.Health/Watch",
      "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"};
};

Methods KnownMethods() {
  Methods methods;
  for (const char* name : {v1::Balancer::service_full_name(), v1::Query::service_full_name(),
                           v1::Admin::service_full_name()}) {
    const google::protobuf::ServiceDescriptor* service =
        google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(name);
    for (int i = 0; i < service->method_count(); ++i) {
      const google::protobuf::MethodDescriptor& method = *service->method(i);
      const bool streams = method.client_streaming() || method.server_streaming();
      (streams ? methods.streams : methods.calls)
          .insert("/" + service->full_name() + "/" + method.name());
    }
  }
  return methods;
}

class TimedCall : public Interceptor {
 public:
  TimedCall(RpcTimes* times, std::string method)
      : times_(times), method_(std::move(method)), start_(MonotonicNow()) {}

  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      times_->Observe(method_, static_cast<absl::StatusCode>(methods->GetSendStatus().error_code()),
                      absl::ToDoubleSeconds(MonotonicNow() - start_));
    }
    methods->Proceed();
  }

 private:
  RpcTimes* const times_;
  const std::string method_;
  const absl::Time start_;
};

class Observer : public ServerInterceptorFactoryInterface {
 public:
  explicit Observer(RpcTimes* times) : times_(times), methods_(KnownMethods()) {}

  Interceptor* CreateServerInterceptor(ServerRpcInfo* info) override {
    const std::string_view name = info->method();
    if (methods_.streams.contains(name)) return nullptr;
    // Names that no service has come here too: they must not become labels.
    if (!methods_.calls.contains(name)) return new TimedCall(times_, kOther);
    return new TimedCall(times_, std::string(name.substr(name.rfind('.') + 1)));
  }

 private:
  RpcTimes* const times_;
  const Methods methods_;
};

}  // namespace

std::unique_ptr<ServerInterceptorFactoryInterface> RpcTimes::MakeObserver() {
  return std::make_unique<Observer>(this);
}

void RpcTimes::Observe(const std::string& method, absl::StatusCode code, double seconds) {
  const std::lock_guard lock(mutex_);
  seconds_[{method, code}].Add(seconds);
}

std::vector<RpcTimes::Series> RpcTimes::Take() const {
  std::vector<Series> series;
  const std::lock_guard lock(mutex_);
  for (const auto& [key, seconds] : seconds_) {
    series.push_back({key.first, absl::StatusCodeToString(key.second), seconds});
  }
  return series;
}

}  // namespace eplb
