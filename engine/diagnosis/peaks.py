"""Dense bf16 peak of devices, by the exact name that torch.cuda.get_device_name gives.

Sources: the vendors' data sheets, dense (no sparsity), at the boost clock. A name that is not here has no
peak: a wrong denominator would make every utilisation wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

BF16_PEAK_FLOPS: Mapping[str, float] = MappingProxyType(
    {
        "NVIDIA A10": 125.0e12,
        "NVIDIA A40": 149.7e12,
        "NVIDIA A100-SXM4-40GB": 312.0e12,
        "NVIDIA A100-SXM4-80GB": 312.0e12,
        "NVIDIA A100-PCIE-40GB": 312.0e12,
        "NVIDIA A100 80GB PCIe": 312.0e12,
        "NVIDIA A800-SXM4-80GB": 312.0e12,
        "NVIDIA L4": 121.0e12,
        "NVIDIA L40S": 362.0e12,
        "NVIDIA H20": 148.0e12,
        "NVIDIA H100 80GB HBM3": 989.4e12,
        "NVIDIA H100 PCIe": 756.0e12,
        "NVIDIA H800": 989.4e12,
        "NVIDIA H200": 989.4e12,
        "NVIDIA GH200 480GB": 989.4e12,
        "NVIDIA B200": 2250.0e12,
        "AMD Instinct MI250X": 383.0e12,
        "AMD Instinct MI300X": 1307.4e12,
    }
)
