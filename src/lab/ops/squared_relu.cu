// squared_relu on NVIDIA GPUs: one pass over memory each way.
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>

namespace {

constexpr int THREADS = 256;
constexpr int64_t BLOCKS = 1 << 16;  // enough for any GPU; each thread strides over what is left

// Half and bfloat16 are computed in float; the comparison lets NaN through, as torch.relu does.
template <typename T>
__global__ void forward_kernel(T* to, const T* from, int64_t n) {
  using Math = at::opmath_type<T>;
  for (int64_t i = blockIdx.x * int64_t(THREADS) + threadIdx.x; i < n; i += int64_t(THREADS) * gridDim.x) {
    Math v = from[i];
    to[i] = v <= Math(0) ? Math(0) : v * v;
  }
}

template <typename T>
__global__ void backward_kernel(T* to, const T* from, const T* above, int64_t n) {
  using Math = at::opmath_type<T>;
  for (int64_t i = blockIdx.x * int64_t(THREADS) + threadIdx.x; i < n; i += int64_t(THREADS) * gridDim.x) {
    Math v = from[i], d = above[i];
    to[i] = v <= Math(0) ? Math(0) : d * (v + v);
  }
}

// The memory of `t` in the order of `out`, whatever its strides (a slice, a transpose, an expanded gradient).
at::Tensor in_order_of(const at::Tensor& out, const at::Tensor& t) {
  return t.strides() == out.strides() ? t : at::empty_like(out).copy_(t);
}

int blocks(int64_t n) { return std::min(BLOCKS, (n + THREADS - 1) / THREADS); }

at::Tensor forward(const at::Tensor& input) {
  const c10::cuda::CUDAGuard guard(input.device());
  at::Tensor out = at::empty_like(input), x = in_order_of(out, input);
  if (x.numel() == 0) return out;  // a grid of no blocks is an error
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "squared_relu", [&] {
    forward_kernel<<<blocks(x.numel()), THREADS, 0, c10::cuda::getCurrentCUDAStream()>>>(
        out.mutable_data_ptr<scalar_t>(), x.const_data_ptr<scalar_t>(), x.numel());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  });
  return out;
}

at::Tensor backward(const at::Tensor& grad, const at::Tensor& input) {
  TORCH_CHECK(grad.sizes() == input.sizes() && grad.scalar_type() == input.scalar_type() && grad.is_cuda(),
              "squared_relu_backward: grad and x must be of one shape, type and device");
  const c10::cuda::CUDAGuard guard(input.device());
  at::Tensor out = at::empty_like(input), x = in_order_of(out, input), g = in_order_of(out, grad);
  if (x.numel() == 0) return out;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "squared_relu_backward", [&] {
    backward_kernel<<<blocks(x.numel()), THREADS, 0, c10::cuda::getCurrentCUDAStream()>>>(
        out.mutable_data_ptr<scalar_t>(), x.const_data_ptr<scalar_t>(), g.const_data_ptr<scalar_t>(), x.numel());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  });
  return out;
}

}  // namespace

// The schemas are in squared_relu.py; these take the place of its reference for tensors on a GPU.
TORCH_LIBRARY_IMPL(leyden, CUDA, m) {
  m.impl("squared_relu", forward);
  m.impl("squared_relu_backward", backward);
}
