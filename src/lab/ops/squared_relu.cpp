// squared_relu on the CPU: one pass over memory each way, vectorised, in parallel.
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

namespace {

constexpr int64_t GRAIN = 1 << 15;  // elements that are worth a thread

// The memory of `t` in the order of `out`, whatever its strides (a slice, a transpose, an expanded gradient).
at::Tensor in_order_of(const at::Tensor& out, const at::Tensor& t) {
  return t.strides() == out.strides() ? t : at::empty_like(out).copy_(t);
}

at::Tensor forward(const at::Tensor& input) {
  at::Tensor out = at::empty_like(input), x = in_order_of(out, input);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "squared_relu", [&] {
    const scalar_t* from = x.const_data_ptr<scalar_t>();
    scalar_t* to = out.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, x.numel(), GRAIN, [&](int64_t begin, int64_t end) {
      // map computes half and bfloat16 in float; maximum lets NaN through, as torch.relu does.
      at::vec::map<scalar_t>(
          [](auto v) {
            auto kept = at::vec::maximum(v, decltype(v)(0));
            return kept * kept;
          },
          to + begin, from + begin, end - begin);
    });
  });
  return out;
}

at::Tensor backward(const at::Tensor& grad, const at::Tensor& input) {
  TORCH_CHECK(grad.sizes() == input.sizes() && grad.scalar_type() == input.scalar_type(),
              "squared_relu_backward: grad and x must be of one shape and type");
  at::Tensor out = at::empty_like(input), x = in_order_of(out, input), g = in_order_of(out, grad);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "squared_relu_backward", [&] {
    const scalar_t *from = x.const_data_ptr<scalar_t>(), *above = g.const_data_ptr<scalar_t>();
    scalar_t* to = out.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, x.numel(), GRAIN, [&](int64_t begin, int64_t end) {
      // Selected, not multiplied by zero: an infinite gradient ends where x <= 0, as in torch.relu's derivative.
      at::vec::map2<scalar_t>(
          [](auto v, auto d) {
            decltype(v) zero(0);
            return decltype(v)::blendv(d * (v + v), zero, v <= zero);
          },
          to + begin, from + begin, above + begin, end - begin);
    });
  });
  return out;
}

}  // namespace

// The schemas are in squared_relu.py; these take the place of its reference for tensors on the CPU.
TORCH_LIBRARY_IMPL(leyden, CPU, m) {
  m.impl("squared_relu", forward);
  m.impl("squared_relu_backward", backward);
}
