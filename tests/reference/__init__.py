"""One long-hand class per published method, each written from the method's own description.

They are the oracles the library is compared with: plain loops over tensors, every intermediate a fresh copy,
nothing shared with the library. `REFERENCES` maps the names of ``lesam.METHODS`` to them. All are called
alike, ``Reference(parameters, base, **hyperparameters).step(closure)``. Two of the methods draw at random,
and their references are handed the draw: `ESAMReference` its mask, `EigenSAMReference` its starting vector.
"""

from .ae_sam import AESAMReference
from .asam import ASAMReference
from .cr_sam import CRSAMReference
from .eigen_sam import EigenSAMReference
from .ema_sam import EMASAMReference
from .esam import ESAMReference
from .fisher_sam import FisherSAMReference
from .friendly_sam import FriendlySAMReference
from .gsam import GSAMReference
from .lesam import LESAMReference
from .lesam_plus import LESAMPlusReference
from .long_hand import Reference
from .look_sam import LookSAMReference
from .msam import MSAMReference
from .one_pass_lesam import OnePassLESAMReference
from .partial_lesam import PartialLESAMReference
from .s2_sam import S2SAMReference
from .sam import SAMReference
from .ssam import SSAMReference
from .vasso import VaSSOReference
from .wsam import WSAMReference

REFERENCES: dict[str, type[Reference]] = {
    "sam": SAMReference,
    "asam": ASAMReference,
    "fishersam": FisherSAMReference,
    "eigensam": EigenSAMReference,
    "friendlysam": FriendlySAMReference,
    "gsam": GSAMReference,
    "ssam": SSAMReference,
    "esam": ESAMReference,
    "msam": MSAMReference,
    "s2sam": S2SAMReference,
    "lesam": LESAMReference,
    "lesamplus": LESAMPlusReference,
    "looksam": LookSAMReference,
    "vasso": VaSSOReference,
    "wsam": WSAMReference,
    "emasam": EMASAMReference,
    "aesam": AESAMReference,
    "crsam": CRSAMReference,
    "onepasslesam": OnePassLESAMReference,
    "partiallesam": PartialLESAMReference,
}

__all__ = [
    "REFERENCES",
    "AESAMReference",
    "ASAMReference",
    "CRSAMReference",
    "EMASAMReference",
    "ESAMReference",
    "EigenSAMReference",
    "FisherSAMReference",
    "FriendlySAMReference",
    "GSAMReference",
    "LESAMPlusReference",
    "LESAMReference",
    "LookSAMReference",
    "MSAMReference",
    "OnePassLESAMReference",
    "PartialLESAMReference",
    "Reference",
    "S2SAMReference",
    "SAMReference",
    "SSAMReference",
    "VaSSOReference",
    "WSAMReference",
]
