#include "tests/integration/grpc_shop.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <atomic>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "client/proxy/upstream_headers.h"
#include "client/status.h"

namespace idempotency {
namespace {

constexpr int kReplyBytesMax = 64 << 20;

Attempt AttemptOf(const OnceCall& call) {
  if (call.execution() == nullptr) return {};
  Attempt attempt = {.number = call.execution()->attempt(),
                     .downstream_key = call.downstream_key(),
                     .abandoned = ""};
  for (const auto& [name, value] :
       UpstreamHeaders(call.execution()->claimed())) {
    if (name == "idempotency-abandoned") attempt.abandoned = value;
  }
  return attempt;
}

std::string ValueOf(const std::multimap<std::string, std::string>& metadata,
                    const std::string& name) {
  const auto found = metadata.find(name);
  return found == metadata.end() ? "" : found->second;
}

HandlerResult Answer(const Charged& charged, OnceCall& call,
                     tests::ChargeReply& reply) {
  if (charged.throws) throw std::runtime_error("the line went dead");
  reply.set_payment(charged.payment);
  reply.set_receipt(charged.receipt);
  for (const auto& [name, value] : charged.trailers) {
    call.AddTrailer(name, value);
  }
  return charged.status;
}

std::unique_ptr<grpc::Server> Serve(grpc::Service& service, int& port) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                           &port);
  builder.RegisterService(&service);
  return builder.BuildAndStart();
}

class SyncShop final : public Shop, public tests::Payments::Service {
 public:
  SyncShop(std::shared_ptr<RunOnce> once, ShopOptions options)
      : once_(std::move(once)),
        options_(std::move(options)),
        charge_{kChargePath, options_.rule},
        server_(Serve(*this, port_)) {}
  int port() const override { return port_; }

  grpc::Status Charge(grpc::ServerContext* context,
                      const tests::ChargeRequest* request,
                      tests::ChargeReply* reply) override {
    MethodResolver resolver;
    if (options_.lookup) {
      resolver = [&](OnceCall&) { return options_.lookup(*reply); };
    }
    return CallOnce(
        *once_, charge_, *context, *request, *reply,
        [&](OnceCall& call) {
          return Answer(options_.wallet(AttemptOf(call), *request), call,
                        *reply);
        },
        resolver);
  }

 private:
  const std::shared_ptr<RunOnce> once_;
  const ShopOptions options_;
  const OnceMethod charge_;
  int port_ = 0;
  const std::unique_ptr<grpc::Server> server_;
};

class CallbackShop final : public Shop,
                           public tests::Payments::CallbackService {
 public:
  CallbackShop(std::shared_ptr<RunOnce> once, ShopOptions options)
      : once_(std::move(once)),
        options_(std::move(options)),
        charge_{kChargePath, options_.rule},
        server_(Serve(*this, port_)) {}
  ~CallbackShop() override { server_->Shutdown(); }
  int port() const override { return port_; }

  grpc::ServerUnaryReactor* Charge(grpc::CallbackServerContext* context,
                                   const tests::ChargeRequest* request,
                                   tests::ChargeReply* reply) override {
    AsyncMethodResolver resolver;
    if (options_.lookup) {
      resolver = [this, reply](auto, const ResolverDone& done) {
        done(options_.lookup(*reply));
      };
    }
    return CallOnce(
        *once_, charge_, *context, *request, *reply,
        [this, request, reply](const std::shared_ptr<OnceCall>& call,
                               const HandlerDone& done) {
          InThread([this, call, request, reply, done] {
            const Charged charged = options_.wallet(AttemptOf(*call), *request);
            // Dropping `done` is what throwing is to the other way.
            if (!charged.throws) done(Answer(charged, *call, *reply));
          });
        },
        std::move(resolver));
  }

 private:
  void InThread(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    threads_.emplace_back(std::move(work));
  }

  const std::shared_ptr<RunOnce> once_;
  const ShopOptions options_;
  const OnceMethod charge_;
  int port_ = 0;
  std::mutex mutex_;
  std::vector<std::jthread> threads_;
  const std::unique_ptr<grpc::Server> server_;
};

class ProxiedShop final : public Shop {
 public:
  ProxiedShop(std::shared_ptr<RunOnce> once, ShopOptions options)
      : plain_(options.wallet) {
    auto proxy = GrpcProxy::Start(
        {.upstream = "127.0.0.1:" + std::to_string(plain_.port())},
        {{.methods = kChargePath,
          .rule = options.rule,
          .resolves = options.lookup != nullptr,
          .timeout = options.timeout}},
        std::move(once));
    if (!proxy.ok()) throw std::runtime_error(proxy.status().ToString());
    proxy_ = *std::move(proxy);
  }
  int port() const override { return proxy_->port(); }

 private:
  PlainShop plain_;
  std::unique_ptr<GrpcProxy> proxy_;
};

}  // namespace

std::string NameOf(Way way) {
  switch (way) {
    case Way::kSync:
      return "Sync";
    case Way::kCallback:
      return "Callback";
    case Way::kProxy:
      return "Proxy";
  }
  return "?";
}

std::unique_ptr<Shop> Shop::Open(Way way, std::shared_ptr<RunOnce> once,
                                 ShopOptions options) {
  switch (way) {
    case Way::kSync:
      return std::make_unique<SyncShop>(std::move(once), std::move(options));
    case Way::kCallback:
      return std::make_unique<CallbackShop>(std::move(once),
                                            std::move(options));
    case Way::kProxy:
      return std::make_unique<ProxiedShop>(std::move(once), std::move(options));
  }
  return nullptr;
}

// ----------------------------------------------------------------- the service

struct PlainShop::Impl final : tests::Payments::Service {
  grpc::Status Charge(grpc::ServerContext* context,
                      const tests::ChargeRequest* request,
                      tests::ChargeReply* reply) override {
    const auto metadata = CopyOf(context->client_metadata());
    const std::string number = ValueOf(metadata, "idempotency-attempt");
    const Charged charged = wallet(
        {.number = number.empty() ? 0 : std::stoi(number),
         .downstream_key = ValueOf(metadata, "idempotency-downstream-key"),
         .abandoned = ValueOf(metadata, "idempotency-abandoned")},
        *request);
    if (charged.throws) throw std::runtime_error("the line went dead");
    reply->set_payment(charged.payment);
    reply->set_receipt(charged.receipt);
    context->AddInitialMetadata("x-first", "hello");
    for (const auto& [name, value] : charged.trailers) {
      context->AddTrailingMetadata(name, value);
    }
    return charged.status;
  }

  grpc::Status Watch(grpc::ServerContext* context,
                     const tests::ChargeRequest* request,
                     grpc::ServerWriter<tests::ChargeReply>* writer) override {
    ++begun;
    tests::ChargeReply reply;
    reply.set_receipt(std::string(std::size_t{1} << 20, 'r'));
    for (int i = 0; i < request->amount() && writer->Write(reply); ++i) {
      ++messages;
    }
    // Without messages it lasts until it is cancelled.
    while (request->amount() == 0 && !context->IsCancelled()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    ++ended;
    return grpc::Status::OK;
  }

  grpc::Status Talk(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<tests::ChargeReply, tests::ChargeRequest>*
          stream) override {
    for (const auto& [name, value] : CopyOf(context->client_metadata())) {
      if (name.rfind("x-", 0) == 0 || IsUpstreamHeader(name)) {
        context->AddInitialMetadata(name, value);
        context->AddTrailingMetadata("echo-" + name, value);
      }
    }
    stream->SendInitialMetadata();
    tests::ChargeRequest request;
    tests::ChargeReply reply;
    bool talking = false;
    while ((talking = stream->Read(&request))) {
      // The end of its own accord.
      if (request.amount() < 0) break;
      reply.set_payment("charge for " + request.order());
      stream->Write(reply);
    }
    if (!talking && !context->IsCancelled()) ++talks_ended_by_their_caller;
    ++talks_ended;
    return grpc::Status(grpc::StatusCode::OUT_OF_RANGE, "enough",
                        "its details");
  }

  Wallet wallet;
  std::atomic<int> messages{0};
  std::atomic<int> begun{0};
  std::atomic<int> ended{0};
  std::atomic<int> talks_ended{0};
  std::atomic<int> talks_ended_by_their_caller{0};
  int port = 0;
  std::unique_ptr<grpc::Server> server;
};

PlainShop::PlainShop(Wallet wallet) : impl_(std::make_unique<Impl>()) {
  impl_->wallet = std::move(wallet);
  impl_->server = Serve(*impl_, impl_->port);
}

PlainShop::~PlainShop() { impl_->server->Shutdown(); }

int PlainShop::port() const { return impl_->port; }
int PlainShop::watch_messages() const { return impl_->messages; }
int PlainShop::watches_begun() const { return impl_->begun; }
int PlainShop::watches_ended() const { return impl_->ended; }
int PlainShop::talks_ended() const { return impl_->talks_ended; }
int PlainShop::talks_ended_by_their_caller() const {
  return impl_->talks_ended_by_their_caller;
}

// ----------------------------------------------------------------- its callers

bool ChargeAnswer::replayed() const {
  return ValueOf(trailers, kReplayedTrailer) == "true";
}

std::string ChargeAnswer::reason() const {
  return ErrorReasonOf(ToAbslStatus(status));
}

std::multimap<std::string, std::string> CopyOf(
    const std::multimap<grpc::string_ref, grpc::string_ref>& metadata) {
  std::multimap<std::string, std::string> copy;
  for (const auto& [name, value] : metadata) {
    copy.emplace(std::string(name.data(), name.size()),
                 std::string(value.data(), value.size()));
  }
  return copy;
}

std::shared_ptr<grpc::Channel> ChannelTo(int port) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kReplyBytesMax);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(port),
                                   grpc::InsecureChannelCredentials(),
                                   arguments);
}

tests::ChargeRequest AnOrder(int amount) {
  tests::ChargeRequest request;
  request.set_order("1842");
  request.set_amount(amount);
  return request;
}

ChargeAnswer ChargeAt(int port, const GrpcMetadata& metadata,
                      const tests::ChargeRequest& request,
                      std::chrono::milliseconds timeout) {
  const auto stub = tests::Payments::NewStub(ChannelTo(port));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + timeout);
  for (const auto& [name, value] : metadata) context.AddMetadata(name, value);
  ChargeAnswer answer;
  answer.status = stub->Charge(&context, request, &answer.reply);
  answer.initial_metadata = CopyOf(context.GetServerInitialMetadata());
  answer.trailers = CopyOf(context.GetServerTrailingMetadata());
  answer.trailers.erase("grpc-status-details-bin");
  return answer;
}

ChargeAnswer ChargeOnce(int port, const std::string& key,
                        const tests::ChargeRequest& request) {
  return ChargeAt(port, {{kKeyMetadata, key}}, request);
}

}  // namespace idempotency
