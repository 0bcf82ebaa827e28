import pytest

from benchmarks.gpu.profiling import kind


@pytest.mark.parametrize(
    ("kernel", "short"),
    [
        (
            "void at::native::unrolled_elementwise_kernel<at::native::direct_copy(at::Base&)::{lambda()#3}>",
            "unrolled_elementwise_kernel",
        ),
        (
            "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float, 1>(at::cuda::Info<float>)",
            "fused_dropout_kernel_vec",
        ),
        ("nvjet_sm90_tst_128x240_64x4_2x1_v_bz_coopA_NNT", "nvjet_sm90_tst_128x240_64x4_2x1_v_bz_coopA_NNT"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD "),
        ("aten::mm", "mm"),
        ("(lambda)", "(lambda)"),
    ],
)
def test_kernels_that_differ_in_their_types_alone_are_of_one_kind(kernel, short):
    assert kind(kernel) == short.strip()
